package embed

import (
	"bytes"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// TestKeysRotateUnderRanksAtRest: a scheduler goes by the keys that its ranks were told last, whichever of them says something
// later; and a ticket under a key that a rank may have been told while all were at rest is asked for again.
func TestKeysRotateUnderRanksAtRest(t *testing.T) {
	s := scheduler(t, `, generation: 7, size: {tp: 2}`)
	own, peer := metadata.Incarnation{Engine: "e", Generation: 7}, metadata.Incarnation{Engine: "p", Generation: 1}
	var key [5][]byte
	for i := range key {
		key[i] = bytes.Repeat([]byte{byte(i + 1)}, 32)
	}
	var ranks [2]enrolment
	told := func(rank int, keys ...[]byte) { ranks[rank].take(metadata.Enrolment{Keys: keys, Now: time.Now()}) }
	heard := func(rank int) {
		t.Helper()
		x := said{report: kvplane.RankReport{Engine: own, Rank: metadata.Rank{TP: rank}}}
		ranks[rank].fill(&x)
		if err := s.Hear(x.marshal()); err != nil {
			t.Fatal(err)
		}
	}
	admit := func(key []byte) Fault {
		ticket := kvplane.GatewayTicket{ID: kvplane.NewTransferID(), Prefill: peer, Decode: own, Issued: time.Now(), Valid: time.Minute}
		return FaultOf(s.Admit(metadata.Decode, ticket.ID, peer, string(ticket.AppendSealed(nil, key))))
	}
	want := func(when string, key []byte, want Fault) {
		t.Helper()
		if got := admit(key); got != want {
			t.Errorf("%s: fault %d; want %d", when, got, want)
		}
	}
	told(0, key[1], key[0])
	told(1, key[1], key[0])
	heard(0)
	heard(1)
	want("at first", key[1], 0)
	told(0, key[2], key[1])
	heard(0)
	heard(1) // which has not been told since, and has something else to say
	want("one rank was told", key[2], 0)
	want("the key before", key[1], 0)
	want("one that nobody was told", key[4], Ticket)

	told(1, key[3], key[2])
	rest := func() { s.heard -= rested + 1 }
	rest()
	want("at rest, a key that is known", key[2], 0)
	want("at rest", key[3], Early)
	heard(1)
	want("heard again", key[3], 0)
	rest()
	want("at rest, one that nobody was told", key[4], Early)
	heard(0)
	want("heard again, one that nobody was told", key[4], Ticket)
}
