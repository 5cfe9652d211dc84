package refengine

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/tcp"
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
func quarantined(t *testing.T) (x pair) {
	t.Helper()
	book, deaf := &phonebook{}, &atomic.Bool{}
	shape := Shape{Seed: 22}
	tcp := func() transport.Transport { return tcp.New(tcp.Config{}) }
	x.p = newTestEngine(t, Config{Name: "p", Shape: shape, Plane: Plane{Times: quarantineTimes, Directory: book,
		Transport: func(int) (transport.Transport, error) { return deafTransport{tcp(), deaf}, nil }}})
	x.d = newTestEngine(t, Config{Name: "d", Shape: shape, TP: 2, Blocks: 100, BlockTokens: 4, Plane: Plane{
		Times: quarantineTimes, Directory: book, Transport: func(int) (transport.Transport, error) { return openTransport{tcp()}, nil },
	}})
	book.add(x.p)
	book.add(x.d)
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
	eventually(t, func() bool { return x.d.Books().Receiving == 3 && x.p.Agents()[0].WriteRequests == 6 })
	deaf.Store(true)
	for _, s := range all {
		if _, err := collect(s); !errors.Is(err, ErrTransfer) {
			t.Fatalf("a leg ended in %v; want a failed transfer", err)
		}
	}
	return x
}

// TestQuarantineIsNotEndedByTime lets prefill go silent: only the proof of its death frees decode's blocks.
func TestQuarantineIsNotEndedByTime(t *testing.T) {
	t.Parallel()
	x := quarantined(t)
	time.Sleep(400 * time.Millisecond) // far beyond every time of this pair
	if b := x.d.Books(); b.Quarantined != 6 || b.Free != b.Blocks-6 {
		t.Errorf("blocks were freed though prefill lives: %+v", b)
	}
	page := string(x.d.Metrics())
	for _, want := range []string{
		`refengine_kv_blocks{state="quarantined"} 6`,
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
