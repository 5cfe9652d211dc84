package bench

import (
	"errors"
	"io"
	"testing"
	"time"

	"pdrouter/metadata"
)

// TestPairRows measures every row once, with engines in this process over tcp.
func TestPairRows(t *testing.T) {
	f, err := openPairs("socket", pairsAtOnce, func() (*planeProcess, error) { return beside(t), nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	})
	for _, c := range append(coldRows("socket", f), warmRows("socket", f)...) {
		t.Run(c.name, func(t *testing.T) {
			rows, err := c.measure(t.Context(), Config{Rounds: 1, Round: time.Millisecond, Others: 1e9, Refuse: 1000}, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range rows {
				for _, x := range append(row.Beside, row.Ours) {
					if x.Median <= 0 {
						t.Errorf("%s: %s is %v; want more than 0", row.What, x.Of, x.Median)
					}
				}
			}
		})
	}
}

// TestPairVoid: a handshake too many, one too few, and one of a generation that is gone void a run.
func TestPairVoid(t *testing.T) {
	f := &pairFleet{prefill: &pairEngine{name: "prefill-0"}, decode: []*pairEngine{{name: "decode-0"}, {name: "decode-1"}}, shaken: map[metadata.Pair]int{}}
	for i, e := range f.decode {
		e.record.Incarnation = metadata.Incarnation{Engine: e.name, Generation: uint64(7 + i)}
	}
	if err := f.counted(1); !errors.Is(err, errVoid) {
		t.Errorf("no handshake: %v; want %v", err, errVoid)
	}
	f.shaken[f.pair(0)] = 1
	if err := f.counted(1); err != nil {
		t.Errorf("one handshake: %v", err)
	}
	if err := f.counted(2); !errors.Is(err, errVoid) {
		t.Errorf("one handshake of two: %v; want %v", err, errVoid)
	}
	f.shaken[f.pair(0)] = 2
	if err := f.counted(1); !errors.Is(err, errVoid) {
		t.Errorf("two handshakes of one pair: %v; want %v", err, errVoid)
	}
	old := f.pair(0)
	old.Decode.Generation--
	if err := f.shake(t.Context(), old); !errors.Is(err, errVoid) {
		t.Errorf("a generation that is gone: %v; want %v", err, errVoid)
	}
}
