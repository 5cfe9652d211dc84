package routes_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/refusal"
	"pdrouter/metadata"
	"pdrouter/metadata/routes"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// TestFault41OneRankIsNotTheEngine: who may write one rank can neither make an engine of that rank alone, which every rank of
// its peers would map onto, nor void the other ranks' records with a generation of the future.
func TestFault41OneRankIsNotTheEngine(t *testing.T) {
	s := store.NewMemory()
	one := routes.Caller{Engine: "decode-0", Role: metadata.Decode, Ranks: []metadata.Rank{{TP: 0}}, Size: metadata.Rank{DP: 1, PP: 1, TP: 4}}
	base := routestest.Serve(t, s, metadatatest.NewVoucher("gateway"), routestest.Callers{"one": one, "whole": {Engine: "decode-0", Role: metadata.Decode}}) + "/metadata/v1/engines"
	for i := range 4 {
		metadatatest.Put(t, s, metadatatest.Record("prefill-0", 7, 4, i), nil)
		metadatatest.Put(t, s, metadatatest.Record("decode-0", 7, 4, i), nil)
	}
	at := base + "/decode-0/ranks/0/0/0"
	ahead := func(d time.Duration) uint64 { return uint64(time.Now().Add(d).UnixNano()) }
	for name, c := range map[string]struct {
		rec    metadata.Record
		status int
		reason string
	}{
		"an engine of one rank":      {metadatatest.Record("decode-0", ahead(0), 1, 0), http.StatusForbidden, refusal.Insufficient},
		"a generation of the future": {metadatatest.Record("decode-0", ahead(time.Hour), 4, 0), http.StatusBadRequest, "clock"},
		"two minutes ahead":          {metadatatest.Record("decode-0", ahead(2*time.Minute), 4, 0), http.StatusBadRequest, "clock"},
	} {
		routestest.WantError(t, name, routestest.Send(t, "PUT", at, "one", metadatatest.Marshal(t, c.rec)), c.status, c.reason)
	}
	for i := range 4 {
		want := http.StatusForbidden
		if i == 0 {
			want = http.StatusOK
		}
		if got := routestest.Send(t, "GET", fmt.Sprint(base, "/prefill-0/ranks/0/0/", i), "one", nil).Status; got != want {
			t.Errorf("prefill's rank %d: got %d; want %d", i, got, want)
		}
		metadatatest.Put(t, s, metadatatest.Later(metadatatest.Record("decode-0", 7, 4, i), time.Second), nil)
	}
	// A clock that is off by less than a minute harms nobody, and neither does one rank of a generation that has begun.
	if got := routestest.Send(t, "PUT", at, "one", metadatatest.Marshal(t, metadatatest.Record("decode-0", ahead(30*time.Second), 4, 0))).Status; got != http.StatusNoContent {
		t.Errorf("30 s ahead: got %d", got)
	}
	begun := ahead(time.Hour)
	if got := routestest.Send(t, "PUT", base+"/decode-0/ranks/0/0/1", "whole", metadatatest.Marshal(t, metadatatest.Record("decode-0", begun, 4, 1))).Status; got != http.StatusNoContent {
		t.Errorf("the whole engine's agent, an hour ahead: got %d", got)
	}
	if got := routestest.Send(t, "PUT", at, "one", metadatatest.Marshal(t, metadatatest.Record("decode-0", begun, 4, 0))).Status; got != http.StatusNoContent {
		t.Errorf("into the generation that has begun: got %d", got)
	}
}
