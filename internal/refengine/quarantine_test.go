package refengine

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/agent"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/tcp"
	"pdrouter/metadata"
)

// quarantineTimes has a silent peer given up after a second, four beats: less, and a peer that is only slow is given up too.
var quarantineTimes = kvplane.Times{Lost: 250 * time.Millisecond, Beat: 250 * time.Millisecond, NetDelay: 10 * time.Millisecond}

// openTransport hides that a transport can fence.
type openTransport struct{ transport.Transport }

// deafTransport hears no message while deaf is set.
type deafTransport struct {
	transport.Transport
	deaf *atomic.Bool
}

func (d deafTransport) Poll(out []transport.Incoming) []transport.Incoming {
	from := len(out)
	out = d.Transport.Poll(out)
	if !d.deaf.Load() {
		return out
	}
	return append(out[:from], slices.DeleteFunc(slices.Clone(out[from:]), func(in transport.Incoming) bool { return in.Kind == transport.MessageReceived })...)
}

// quarantined is a pair whose prefill engine has gone silent after decode has registered with it.
func quarantined(t *testing.T, far bool) (x pair, book *phonebook, deaf *atomic.Bool) {
	t.Helper()
	book, deaf = &phonebook{}, &atomic.Bool{}
	shape := Shape{Seed: 22}
	tcp := func() transport.Transport { return tcp.New(tcp.Config{}) }
	x.p = newTestEngine(t, Config{Name: "p", Shape: shape, Plane: Plane{Times: quarantineTimes, Directory: book,
		Transport: func(int) (transport.Transport, error) { return deafTransport{tcp(), deaf}, nil }}})
	x.d = newTestEngine(t, Config{Name: "d", Shape: shape, TP: 2, Blocks: 100, BlockTokens: 4, Plane: Plane{
		Times: quarantineTimes, Directory: book, Transport: func(int) (transport.Transport, error) { return openTransport{tcp()}, nil },
		Quarantine: agent.RebuildPolicy{Grace: 100 * time.Millisecond},
		Republish:  func(rec metadata.Record) { book.replace(rec) },
	}})
	book.add(x.p)
	book.add(x.d)
	if far {
		for _, rec := range x.p.Records() {
			rec.Process = metadata.Process{Boot: "elsewhere", Namespaces: "elsewhere", PID: 1, Started: 1}
			book.replace(rec)
		}
	}
	legs := func(n int) []*Sequence {
		var out []*Sequence
		for range n {
			h := Handoff{ID: kvplane.NewTransferID(), Valid: time.Minute, Peer: x.p.Incarnation()}
			s, err := x.d.Submit(Request{Tokens: tokenize("hello"), MaxTokens: 3, Leg: DecodeLeg, Handoff: h})
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, s)
		}
		return out
	}
	all := legs(3) // 6 of 100 blocks
	eventually(t, func() bool { return x.d.Books().Receiving == 3 && x.p.Agents()[0].Registrations == 6 })
	deaf.Store(true)
	for _, s := range all {
		if _, err := collect(s); !errors.Is(err, ErrTransfer) {
			t.Fatalf("a leg ended in %v; want a failed transfer", err)
		}
	}
	return x, book, deaf
}

// TestQuarantineOfAnotherPeerIsNotForgotten: two peers are silent, each towards another rank. One of them keeps too much
// and is relieved of it first; that the other one has kept something for longer is not forgotten by that.
func TestQuarantineOfAnotherPeerIsNotForgotten(t *testing.T) {
	t.Parallel()
	book := &phonebook{}
	shape := Shape{Seed: 23}
	tcp := func() transport.Transport { return tcp.New(tcp.Config{}) }
	var deaf atomic.Bool
	mute := map[string]int{"a": 1, "b": 0}
	peers := map[string]*Engine{}
	for name, mute := range mute {
		peers[name] = newTestEngine(t, Config{Name: name, Shape: shape, TP: 2, Plane: Plane{Times: quarantineTimes, Directory: book,
			Transport: func(rank int) (transport.Transport, error) {
				if rank == mute {
					return deafTransport{tcp(), &deaf}, nil
				}
				return tcp(), nil
			}}})
	}
	d := newTestEngine(t, Config{Name: "d", Shape: shape, TP: 2, Blocks: 100, BlockTokens: 4, Plane: Plane{
		Times: quarantineTimes, Directory: book, Transport: func(int) (transport.Transport, error) { return openTransport{tcp()}, nil },
		Quarantine: agent.RebuildPolicy{Grace: 100 * time.Millisecond, Age: 1500 * time.Millisecond},
		Republish:  func(rec metadata.Record) { book.replace(rec) },
	}})
	book.add(d)
	for _, p := range peers {
		book.add(p)
		for _, rec := range p.Records() {
			rec.Process = metadata.Process{Boot: "elsewhere", Namespaces: "elsewhere", PID: 1, Started: 1}
			book.replace(rec)
		}
	}
	var all []*Sequence
	for _, name := range []string{"b", "a", "a", "a"} { // 2 and 6 of 100 blocks
		h := Handoff{ID: kvplane.NewTransferID(), Valid: time.Minute, Peer: peers[name].Incarnation()}
		s, err := d.Submit(Request{Tokens: tokenize("hello"), MaxTokens: 3, Leg: DecodeLeg, Handoff: h})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	eventually(t, func() bool {
		n := 0
		for _, p := range peers {
			for _, a := range p.Agents() {
				n += a.Registrations
			}
		}
		return n == 8
	})
	deaf.Store(true)
	for _, s := range all {
		if _, err := collect(s); !errors.Is(err, ErrTransfer) {
			t.Fatalf("a leg ended in %v; want a failed transfer", err)
		}
	}
	eventually(t, func() bool { b := d.Books(); return b.Free == b.Blocks })
	if n := rebuilds(d); n != 2 {
		t.Errorf("%d ranks were rebuilt; want both", n)
	}
}

func (b *phonebook) replace(rec metadata.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	recs := slices.Clone(b.engines[rec.Incarnation])
	for i := range recs {
		if recs[i].Rank == rec.Rank {
			recs[i] = rec
		}
	}
	b.engines[rec.Incarnation] = recs
}

func rebuilds(e *Engine) (n uint64) {
	e.ask(func() { n = e.counts.rebuilds })
	return n
}

// TestQuarantineEndsInARebuild lets prefill go silent on another host: decode's ranks are rebuilt, their blocks come
// back, and both serve again once prefill hears.
func TestQuarantineEndsInARebuild(t *testing.T) {
	t.Parallel()
	x, _, deaf := quarantined(t, true)
	if b := x.d.Books(); b.Quarantined == 0 && rebuilds(x.d) == 0 {
		t.Errorf("nothing came into quarantine: %+v", b)
	}
	eventually(t, func() bool { b := x.d.Books(); return rebuilds(x.d) == 2 && b.Free == b.Blocks })
	for i, rec := range x.d.Records() {
		if !strings.HasSuffix(rec.Agent, "#2") {
			t.Errorf("rank %d is still %s", i, rec.Agent)
		}
	}
	deaf.Store(false)
	q := Request{Tokens: tokenize("again"), MaxTokens: 5, IgnoreEnd: true}
	for try := 1; ; try++ { // an offer to the old agents fails, and prefill looks decode's records up again
		p, d := x.dispatch(t, q)
		if _, err := collect(p); err != nil {
			t.Fatal(err)
		}
		got, err := collect(d)
		if errors.Is(err, ErrTransfer) && try < 5 {
			continue
		}
		if err != nil || !slices.Equal(got, naive(x.d.model, q.Tokens, 5, 0, true)) {
			t.Errorf("after the rebuild decode answered %v, %v", got, err)
		}
		t.Logf("answered at try %d", try)
		break
	}
	x.settled(t)
}

// TestQuarantineIsNotEndedByTime lets prefill go silent on this host, where it may copy without any transport of
// decode's: a rebuild would not free the blocks, so there is none. The proof of its death does.
func TestQuarantineIsNotEndedByTime(t *testing.T) {
	t.Parallel()
	x, _, _ := quarantined(t, false)
	time.Sleep(400 * time.Millisecond) // far beyond every time of this pair
	var looks bool
	if x.d.ask(func() { looks = x.d.watching || x.d.rebuilding }); looks {
		t.Error("a rebuild that cannot help is to be tried again")
	}
	if n := rebuilds(x.d); n > 0 {
		t.Errorf("%d ranks were rebuilt, which frees nothing", n)
	}
	if b := x.d.Books(); b.Quarantined != 6 || b.Free != b.Blocks-6 {
		t.Errorf("blocks were freed though prefill lives: %+v", b)
	}
	page := string(x.d.Metrics())
	for _, want := range []string{
		`refengine_kv_blocks{state="quarantined"} 6`, `refengine_rank_rebuilds_total 0`,
		`refengine_plane_quarantined_blocks{rank="0/0/1",peer="` + x.p.Incarnation().ID() + `"} 6`,
		`refengine_plane_quarantine_seconds{rank="0/0/0",peer="` + x.p.Incarnation().ID() + `"} `,
		`refengine_plane_received_total{rank="0/0/0",reason="`, `",reason="peer_gone"} 3`,
		`refengine_plane_seen_seconds_bucket{rank="0/0/0",le="1e-05"} `, `refengine_plane_seen_seconds_bucket{rank="0/0/0",le="+Inf"} `,
		`refengine_plane_polls_total{rank="0/0/0"} `, `refengine_plane_wakeups_total{rank="0/0/1"} `,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("metrics lack %s in:\n%s", want, page)
		}
	}
	for _, a := range x.d.plane.agents {
		a.Gone(x.p.Incarnation()) // as if it had been reaped
	}
	eventually(t, func() bool { b := x.d.Books(); return b.Free == b.Blocks })
}
