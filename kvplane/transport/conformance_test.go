package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
)

func TestTransportMessages(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 4096)
		for i, size := range []int{1, 2, 100, 8 << 10, 64 << 10, transport.MaxMessage} {
			body := make([]byte, size)
			transporttest.Scribble(body, uint64(i))
			want := bytes.Clone(body)
			if err := p.Transport.Send("d@1", body); err != nil {
				t.Fatal(err)
			}
			clear(body) // the transport has a copy
			if in := d.AwaitMessage(want, p); in.Agent != "p@1" {
				t.Errorf("sender is %q; want p@1", in.Agent)
			}
			if err := d.Transport.Send("p@1", want); err != nil {
				t.Fatal(err)
			}
			p.AwaitMessage(want, d)
		}
		if err := p.Transport.Send("d@1", make([]byte, transport.MaxMessage+1)); err == nil {
			t.Error("a message above MaxMessage was taken")
		}
	})
}

func TestTransportWrites(t *testing.T) {
	const room = 64<<20 + 4096
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, room)
		guard := bytes.Repeat([]byte{0xee}, room)
		for i, size := range []int{1, 2, 63, 4096, 65537, 1<<20 + 3, 64 << 20} {
			t.Run(fmt.Sprint(size), func(t *testing.T) {
				p.T, d.T = t, t
				transporttest.Paint(d.Mem[:min(len(d.Mem), size+8192)], 0xee)
				from, to := 13*i, 7+i
				transporttest.Scribble(p.Mem[from:from+size], uint64(i))
				p.Store()
				d.Store()
				note := fmt.Appendf(nil, "written %d", size)
				ranges := []transfer.Range{{Local: p.Base + uint64(from), Remote: d.Base + uint64(to), Length: uint64(size)}}
				if err := p.Transport.Write("d@1", uint64(i), ranges, note); err != nil {
					t.Fatal(err)
				}
				ranges[0], note = transfer.Range{}, bytes.Clone(note) // neither is kept
				d.AwaitMessage(note, p)
				// The notification is here, so every byte must be.
				d.Load()
				if !bytes.Equal(d.Mem[to:to+size], p.Mem[from:from+size]) {
					t.Fatal("the bytes differ when the notification has come")
				}
				if !bytes.Equal(d.Mem[:to], guard[:to]) || !bytes.Equal(d.Mem[to+size:], guard[to+size:]) {
					t.Fatal("bytes outside the write were changed")
				}
				if err := p.AwaitEnd(uint64(i), d); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
}

// TestTransportManyRanges writes thousands of scattered small ranges both ways at once.
func TestTransportManyRanges(t *testing.T) {
	const count, stride = 4096, 96
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 2*count*stride)
		r := rand.New(rand.NewPCG(3, 4))
		half := uint64(count * stride)
		want := map[*transporttest.Node][]byte{p: nil, d: nil}
		plan := map[*transporttest.Node][]transfer.Range{}
		transporttest.Scribble(p.Mem[:half], 1) // each sends from its lower half into the other's upper half
		transporttest.Scribble(d.Mem[:half], 2)
		p.Store()
		d.Store()
		for i, way := range [][2]*transporttest.Node{{p, d}, {d, p}} {
			from, to := way[0], way[1]
			image := bytes.Clone(to.Mem)
			for j, at := range r.Perm(count) {
				n := 1 + uint64(r.IntN(64))
				src, dst := uint64(j)*stride, half+uint64(at)*stride
				plan[from] = append(plan[from], transfer.Range{Local: from.Base + src, Remote: to.Base + dst, Length: n})
				copy(image[dst:dst+n], from.Mem[src:src+n])
			}
			want[to] = image
			if err := from.Transport.Write(to.Record.Agent, uint64(i), plan[from], []byte("many")); err != nil {
				t.Fatal(err)
			}
		}
		d.AwaitMessage([]byte("many"), p)
		p.AwaitMessage([]byte("many"), d)
		for n, image := range want {
			n.Load()
			if !bytes.Equal(n.Mem, image) {
				t.Errorf("%s: memory differs", n.Record.Agent)
			}
		}
		if err := errors.Join(p.AwaitEnd(0, d), d.AwaitEnd(1, p)); err != nil {
			t.Error(err)
		}
	})
}

// TestTransportInOrder posts many writes at once: each ends once, each notification comes once.
func TestTransportInOrder(t *testing.T) {
	const count = 64
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, count*4096)
		transporttest.Scribble(p.Mem, 9)
		p.Store()
		for i := range count {
			at := uint64(i * 4096)
			if err := p.Transport.Write("d@1", uint64(i), []transfer.Range{{Local: p.Base + at, Remote: d.Base + at, Length: 4096}}, []byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range count {
			d.AwaitMessage([]byte{byte(i)}, p)
			d.Load()
			if at := i * 4096; !bytes.Equal(d.Mem[at:at+4096], p.Mem[at:at+4096]) {
				t.Fatalf("write %d: the bytes differ when the notification has come", i)
			}
			if err := p.AwaitEnd(uint64(i), d); err != nil {
				t.Fatal(err)
			}
		}
		for range 10 {
			p.Poll()
			d.Poll()
		}
		if len(p.Got)+len(d.Got) != 0 {
			t.Errorf("left over: %v %v", p.Got, d.Got)
		}
	})
}

// TestTransportEmptyWrite: a write of no bytes is a notification with an end.
func TestTransportEmptyWrite(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 4096)
		if err := p.Transport.Write("d@1", 5, nil, []byte("nothing to write")); err != nil {
			t.Fatal(err)
		}
		d.AwaitMessage([]byte("nothing to write"), p)
		if err := p.AwaitEnd(5, d); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTransportRefusesRanges(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 8192)
		before := bytes.Clone(d.Mem)
		end := d.Base + 8192
		for name, r := range map[string]transfer.Range{
			"remote below":       {Local: p.Base, Remote: d.Base - 1, Length: 16},
			"remote past end":    {Local: p.Base, Remote: end - 15, Length: 16},
			"remote after end":   {Local: p.Base, Remote: end, Length: 1},
			"remote wraps":       {Local: p.Base, Remote: ^uint64(0) - 7, Length: 16},
			"remote length":      {Local: p.Base, Remote: d.Base + 1, Length: ^uint64(0)},
			"remote zero":        {Local: p.Base, Remote: 0, Length: 8},
			"local below":        {Local: p.Base - 1, Remote: d.Base, Length: 16},
			"local past end":     {Local: p.Base + 8192 - 15, Remote: d.Base, Length: 16},
			"empty":              {Local: p.Base, Remote: d.Base, Length: 0},
			"second of two only": {Local: p.Base, Remote: end, Length: 4},
		} {
			ranges := []transfer.Range{r}
			if name == "second of two only" {
				ranges = []transfer.Range{{Local: p.Base, Remote: d.Base, Length: 4}, r}
			}
			if err := p.Transport.Write("d@1", 1, ranges, []byte("no")); err == nil {
				t.Errorf("%s: posted", name)
			}
		}
		if err := p.Transport.Write("d@1", 2, []transfer.Range{{Local: p.Base, Remote: d.Base, Length: 1}}, []byte("yes")); err != nil {
			t.Fatal(err)
		}
		d.AwaitMessage([]byte("yes"), p)
		d.Load()
		if !bytes.Equal(d.Mem[1:], before[1:]) {
			t.Error("memory was changed")
		}
		if err := p.AwaitEnd(2, d); err != nil {
			t.Error(err)
		}
	})
}

func TestTransportPeers(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 4096)
		if err := p.Transport.Send("x@1", []byte("hello")); !errors.Is(err, transport.ErrUnknownPeer) {
			t.Errorf("message to a stranger: %v; want ErrUnknownPeer", err)
		}
		if err := p.Transport.Write("x@1", 1, []transfer.Range{{Local: p.Base, Remote: d.Base, Length: 1}}, nil); !errors.Is(err, transport.ErrUnknownPeer) {
			t.Errorf("write to a stranger: %v; want ErrUnknownPeer", err)
		}
		if err := p.Transport.Connect(d.Record); !errors.Is(err, transport.ErrKnownPeer) {
			t.Errorf("second Connect: %v; want ErrKnownPeer", err)
		}
		broken := d.Record
		broken.Agent, broken.Blob = "y@1", []byte("not a blob")
		if err := p.Transport.Connect(broken); err == nil {
			t.Error("a broken blob was taken")
		}
		other := d.Record
		other.Agent, other.Transport = "z@1", "smoke signals"
		if err := p.Transport.Connect(other); err == nil {
			t.Error("a peer of another transport was taken")
		}
		p.Transport.Disconnect("d@1")
		p.Transport.Disconnect("d@1") // twice is harmless
		if err := p.Transport.Send("d@1", []byte("gone")); !errors.Is(err, transport.ErrUnknownPeer) {
			t.Errorf("message after Disconnect: %v; want ErrUnknownPeer", err)
		}
		p.Connect(d)
		if err := p.Transport.Send("d@1", []byte("back")); err != nil {
			t.Fatal(err)
		}
		d.AwaitMessage([]byte("back"), p)
	})
}

// TestTransportReceiverCloses: the sender learns of it, and whatever it posts afterwards ends in an error.
func TestTransportReceiverCloses(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 1<<20)
		if err := p.Transport.Write("d@1", 1, []transfer.Range{{Local: p.Base, Remote: d.Base, Length: 1 << 20}}, []byte("first")); err != nil {
			t.Fatal(err)
		}
		d.AwaitMessage([]byte("first"), p)
		if err := p.AwaitEnd(1, d); err != nil {
			t.Fatal(err)
		}
		if err := d.Transport.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.Transport.Write("d@1", 2, []transfer.Range{{Local: p.Base, Remote: d.Base, Length: 1 << 20}}, []byte("second")); err == nil {
			if err := p.AwaitEnd(2); err == nil {
				t.Error("a write to a closed receiver ended well")
			}
		}
		lost := p.Await("peer lost", func(in transport.Incoming) bool { return in.Kind == transport.PeerLost })
		if lost.Agent != "d@1" || lost.Err == nil {
			t.Errorf("lost %q: %v; want d@1 and why", lost.Agent, lost.Err)
		}
		if err := p.Transport.Write("d@1", 3, []transfer.Range{{Local: p.Base, Remote: d.Base, Length: 1}}, nil); !errors.Is(err, transport.ErrPeerLost) {
			t.Errorf("write to a lost peer: %v; want ErrPeerLost", err)
		}
		p.Transport.Disconnect("d@1")
	})
}

// TestTransportClosed: a closed transport refuses everything and has nothing to tell.
func TestTransportClosed(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 4096)
		if err := p.Transport.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.Transport.Send("d@1", []byte("x")); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("Send: %v; want ErrClosed", err)
		}
		if err := p.Transport.Write("d@1", 1, []transfer.Range{{Local: p.Base, Remote: d.Base, Length: 1}}, nil); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("Write: %v; want ErrClosed", err)
		}
		if err := p.Transport.Connect(d.Record); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("Connect: %v; want ErrClosed", err)
		}
		p.Transport.Disconnect("d@1")
		if got := p.Transport.Poll(nil); len(got) != 0 {
			t.Errorf("Poll: %v", got)
		}
	})
}

// TestTransportWake: an owner that sleeps until Wake rings sees a message.
func TestTransportWake(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 4096)
		for _, way := range [][2]*transporttest.Node{{p, d}, {d, p}} { // wire up
			if err := way[0].Transport.Send(way[1].Record.Agent, []byte("first")); err != nil {
				t.Fatal(err)
			}
			way[1].AwaitMessage([]byte("first"), way[0])
		}
		for i := range 20 {
			for len(d.Transport.Wake()) > 0 {
				<-d.Transport.Wake()
			}
			body := fmt.Appendf(nil, "wake %d", i)
			if err := p.Transport.Send("d@1", body); err != nil {
				t.Fatal(err)
			}
			// From here d polls only when it was woken.
			deadline := time.After(transporttest.Patience)
			for seen := false; !seen; {
				select {
				case <-d.Transport.Wake():
				case <-deadline:
					t.Fatalf("message %d: nothing woke the sleeping owner", i)
				}
				for range 1000 { // NIXL: the datagram may overtake the message
					d.Poll()
					p.Poll()
					if len(d.Got) > 0 {
						break
					}
				}
				for _, in := range d.Got {
					seen = seen || bytes.Equal(in.Body, body)
				}
				d.Got = nil
			}
		}
	})
}
