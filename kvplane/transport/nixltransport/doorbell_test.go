package nixltransport

import (
	"net"
	"testing"
	"time"

	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
)

// TestNIXLDoorbell: a peer that sleeps is rung for, one that has spoken just now is awake and is not. What a peer said
// before it was last listened to says nothing of now. A datagram of a stranger wakes nothing.
func TestNIXLDoorbell(t *testing.T) {
	p, d := transporttest.Pair(t, func(t testing.TB) transport.Transport { return newNIXL(t) }, 64)
	tr := p.Transport.(*Transport)
	rings := func() int {
		n := 0
		for deadline := time.After(50 * time.Millisecond); ; {
			select {
			case <-d.Transport.Wake():
				n++
			case <-deadline:
				return n
			}
		}
	}
	send := func() {
		t.Helper()
		if err := p.Transport.Send("d@1", []byte("to d")); err != nil {
			t.Fatal(err)
		}
		d.AwaitMessage([]byte("to d"), p)
	}
	send()
	rings() // of connecting, too
	stranger, err := net.Dial("udp", d.Record.Doorbell)
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	for _, body := range [][]byte{{}, {0}, make([]byte, 16), make([]byte, 1000)} {
		if _, err := stranger.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if n := rings(); n > 0 {
		t.Errorf("datagrams of a stranger woke the owner %d times", n)
	}
	before := time.Now()
	p.Poll()
	if err := d.Transport.Send("p@1", []byte("to p")); err != nil {
		t.Fatal(err)
	}
	p.AwaitMessage([]byte("to p"), d)
	peer := tr.peers["d@1"]
	if peer.heard.Before(before) || peer.heard.After(tr.looked) {
		t.Errorf("heard since %v; want the look before the last, between %v and %v", peer.heard, before, tr.looked)
	}
	for _, tc := range []struct {
		name  string
		heard time.Time
		want  bool
	}{
		{"just now", time.Now().Add(time.Hour), false},
		{"long ago", time.Now().Add(-2 * expectant), true},
		{"never", time.Time{}, true},
	} {
		peer.heard = tc.heard
		send()
		if n := rings(); n > 0 != tc.want {
			t.Errorf("a message to a peer that was heard %s rang %d times", tc.name, n)
		}
		peer.heard = tc.heard
		if err := p.Transport.Write("d@1", 1, []transfer.Range{{Local: p.Base, Remote: d.Base, Length: 8}}, []byte("written")); err != nil {
			t.Fatal(err)
		}
		if err := p.AwaitEnd(1, d); err != nil {
			t.Fatal(err)
		}
		d.AwaitMessage([]byte("written"), p)
		if n := rings(); n > 0 != tc.want {
			t.Errorf("a write to a peer that was heard %s rang %d times", tc.name, n)
		}
	}
}
