package metadata

import (
	"fmt"
	"net/http"
	"pdrouter/internal/refusal"
	"testing"
	"time"
)

// TestFault41OneRankIsNotTheEngine: who may write one rank can neither make an engine of that rank alone, which every rank of
// its peers would map onto, nor void the other ranks' records with a generation of the future.
func TestFault41OneRankIsNotTheEngine(t *testing.T) {
	s := NewMemory()
	one := Caller{Engine: "decode-0", Role: Decode, Ranks: []Rank{{TP: 0}}, Size: Rank{DP: 1, PP: 1, TP: 4}}
	base := gatewayOf(t, s, newFakeVoucher("gateway"), fakeCallers{"one": one, "whole": {Engine: "decode-0", Role: Decode}}) + "/metadata/v1/engines"
	for i := range 4 {
		put(t, s, record("prefill-0", 7, 4, i), nil)
		put(t, s, record("decode-0", 7, 4, i), nil)
	}
	at := base + "/decode-0/ranks/0/0/0"
	ahead := func(d time.Duration) uint64 { return uint64(time.Now().Add(d).UnixNano()) }
	for name, c := range map[string]struct {
		rec    Record
		status int
		reason string
	}{
		"an engine of one rank":      {record("decode-0", ahead(0), 1, 0), http.StatusForbidden, refusal.Insufficient},
		"a generation of the future": {record("decode-0", ahead(time.Hour), 4, 0), http.StatusBadRequest, "clock"},
		"two minutes ahead":          {record("decode-0", ahead(2*time.Minute), 4, 0), http.StatusBadRequest, "clock"},
	} {
		wantError(t, name, send(t, "PUT", at, "one", marshal(t, c.rec)), c.status, c.reason)
	}
	for i := range 4 {
		want := http.StatusForbidden
		if i == 0 {
			want = http.StatusOK
		}
		if got := send(t, "GET", fmt.Sprint(base, "/prefill-0/ranks/0/0/", i), "one", nil).status; got != want {
			t.Errorf("prefill's rank %d: got %d; want %d", i, got, want)
		}
		put(t, s, later(record("decode-0", 7, 4, i), time.Second), nil)
	}
	// A clock that is off by less than a minute harms nobody, and neither does one rank of a generation that has begun.
	if got := send(t, "PUT", at, "one", marshal(t, record("decode-0", ahead(30*time.Second), 4, 0))).status; got != http.StatusNoContent {
		t.Errorf("30 s ahead: got %d", got)
	}
	begun := ahead(time.Hour)
	if got := send(t, "PUT", base+"/decode-0/ranks/0/0/1", "whole", marshal(t, record("decode-0", begun, 4, 1))).status; got != http.StatusNoContent {
		t.Errorf("the whole engine's agent, an hour ahead: got %d", got)
	}
	if got := send(t, "PUT", at, "one", marshal(t, record("decode-0", begun, 4, 0))).status; got != http.StatusNoContent {
		t.Errorf("into the generation that has begun: got %d", got)
	}
}
