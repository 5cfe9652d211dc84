package client

import (
	"errors"
	"testing"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// TestFault69WhoIsStaleLearnsWhatIsKnown: a writer whose generation is older than the one that is known is told which that is,
// also when its records are gone; whoever may not write the engine is told nothing.
func TestFault69WhoIsStaleLearnsWhatIsKnown(t *testing.T) {
	for name, s := range map[string]metadata.Store{"memory": store.NewMemory(), "redis": metadatatest.RedisAt(t, redistest.Start(t), nil, "stale")} {
		base := routestest.Serve(t, s, nil, routestest.Callers{"own": {Engine: "prefill-0"}, "other": {Engine: "prefill-1"}})
		known := metadatatest.Record("prefill-0", 1<<60+9, 1, 0)
		metadatatest.Put(t, s, known, nil)
		if err := s.Delete(t.Context(), known.Incarnation, known.Rank); err != nil {
			t.Fatal(err)
		}
		old := metadatatest.Record("prefill-0", 1<<60, 1, 0)
		err := newClient(t, base, "own", nil).Put(t.Context(), old)
		var newer *metadata.Superseded
		if !errors.As(err, &newer) || !errors.Is(err, metadata.ErrStale) || newer.Known != known.Generation || newer.Generation != old.Generation {
			t.Errorf("%s: got %v; want both generations", name, err)
		}
		got := routestest.Send(t, "PUT", base+"/metadata/v1/engines/prefill-0/ranks/0/0/0", "other", metadatatest.Marshal(t, old))
		if got.Status != 403 || got.Header.Get(metadata.GenerationHeader) != "" {
			t.Errorf("%s: another engine's agent: got %d %v", name, got.Status, got.Header)
		}
		now := metadatatest.Record("prefill-0", newer.Known+1, 1, 0)
		metadatatest.Put(t, s, now, nil)
		err = newClient(t, base, "own", nil).Put(t.Context(), metadatatest.Later(now, -1e9))
		if newer = nil; !errors.Is(err, metadata.ErrStale) || errors.As(err, &newer) {
			t.Errorf("%s: an older record of the known generation: got %v; want stale, and no newer generation", name, err)
		}
	}
}
