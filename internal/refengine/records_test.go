package refengine

import (
	"errors"
	"testing"

	"pdrouter/metadata"
)

// TestFault45RecordsNameTheProtocol: an engine whose agents speak another version of the plane's protocol is not paired.
func TestFault45RecordsNameTheProtocol(t *testing.T) {
	var book phonebook
	x := pair{
		p: book.open(t, Config{Name: "p", Role: metadata.Prefill, TP: 2}),
		d: book.open(t, Config{Name: "d", Role: metadata.Decode}),
	}
	ps, ds := x.p.Records(), x.d.Records()
	if err := metadata.Pairable(ps, ds); err != nil {
		t.Fatal(err)
	}
	version := ds[0].ConnectorVersion
	if version == "" {
		t.Error("the records name no version")
	}
	for i := range ps {
		if got := ps[i].ConnectorVersion; got != version {
			t.Errorf("rank %v names the version %q; want %q", ps[i].Rank, got, version)
		}
		ps[i].ConnectorVersion = version + "1"
	}
	var why *metadata.Unpairable
	if err := metadata.Pairable(ps, ds); !errors.As(err, &why) || why.Reason != metadata.OtherProtocol {
		t.Errorf("with another version: %v; want %v", err, metadata.OtherProtocol)
	}
	closeEngine(t, x.d)
	closeEngine(t, x.p)
}
