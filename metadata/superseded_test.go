package metadata

import (
	"errors"
	"testing"

	"pdrouter/internal/redistest"
)

// TestFault69WhoIsStaleLearnsWhatIsKnown: a writer whose generation is older than the one that is known is told which that is,
// also when its records are gone; whoever may not write the engine is told nothing.
func TestFault69WhoIsStaleLearnsWhatIsKnown(t *testing.T) {
	for name, s := range map[string]Store{"memory": NewMemory(), "redis": store(t, redistest.Start(t), nil, "stale")} {
		base := gatewayOf(t, s, nil, fakeCallers{"own": {Engine: "prefill-0"}, "other": {Engine: "prefill-1"}})
		known := record("prefill-0", 1<<60+9, 1, 0)
		put(t, s, known, nil)
		if err := s.Delete(t.Context(), known.Incarnation, known.Rank); err != nil {
			t.Fatal(err)
		}
		old := record("prefill-0", 1<<60, 1, 0)
		err := newClient(t, base, "own", nil).Put(t.Context(), old)
		var newer *Superseded
		if !errors.As(err, &newer) || !errors.Is(err, ErrStale) || newer.Known != known.Generation || newer.Generation != old.Generation {
			t.Errorf("%s: got %v; want both generations", name, err)
		}
		got := send(t, "PUT", base+"/metadata/v1/engines/prefill-0/ranks/0/0/0", "other", marshal(t, old))
		if got.status != 403 || got.header.Get(GenerationHeader) != "" {
			t.Errorf("%s: another engine's agent: got %d %v", name, got.status, got.header)
		}
		now := record("prefill-0", newer.Known+1, 1, 0)
		put(t, s, now, nil)
		err = newClient(t, base, "own", nil).Put(t.Context(), later(now, -1e9))
		if newer = nil; !errors.Is(err, ErrStale) || errors.As(err, &newer) {
			t.Errorf("%s: an older record of the known generation: got %v; want stale, and no newer generation", name, err)
		}
	}
}
