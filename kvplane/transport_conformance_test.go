package kvplane

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func TestTransportMessages(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 4096)
		for i, size := range []int{1, 2, 100, 8 << 10, 64 << 10, MaxMessage} {
			body := make([]byte, size)
			scribble(body, uint64(i))
			want := bytes.Clone(body)
			if err := p.tr.Send("d@1", body); err != nil {
				t.Fatal(err)
			}
			clear(body) // the transport has a copy
			if in := d.awaitMessage(want, p); in.Agent != "p@1" {
				t.Errorf("sender is %q; want p@1", in.Agent)
			}
			if err := d.tr.Send("p@1", want); err != nil {
				t.Fatal(err)
			}
			p.awaitMessage(want, d)
		}
		if err := p.tr.Send("d@1", make([]byte, MaxMessage+1)); err == nil {
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
				p.t, d.t = t, t
				paint(d.mem[:min(len(d.mem), size+8192)], 0xee)
				from, to := 13*i, 7+i
				scribble(p.mem[from:from+size], uint64(i))
				p.store()
				d.store()
				note := fmt.Appendf(nil, "written %d", size)
				ranges := []Range{{Local: p.base + uint64(from), Remote: d.base + uint64(to), Length: uint64(size)}}
				if err := p.tr.Write("d@1", uint64(i), ranges, note); err != nil {
					t.Fatal(err)
				}
				ranges[0], note = Range{}, bytes.Clone(note) // neither is kept
				d.awaitMessage(note, p)
				// The notification is here, so every byte must be.
				d.load()
				if !bytes.Equal(d.mem[to:to+size], p.mem[from:from+size]) {
					t.Fatal("the bytes differ when the notification has come")
				}
				if !bytes.Equal(d.mem[:to], guard[:to]) || !bytes.Equal(d.mem[to+size:], guard[to+size:]) {
					t.Fatal("bytes outside the write were changed")
				}
				if err := p.awaitEnd(uint64(i), d); err != nil {
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
		want := map[*node][]byte{p: nil, d: nil}
		plan := map[*node][]Range{}
		scribble(p.mem[:half], 1) // each sends from its lower half into the other's upper half
		scribble(d.mem[:half], 2)
		p.store()
		d.store()
		for i, way := range [][2]*node{{p, d}, {d, p}} {
			from, to := way[0], way[1]
			image := bytes.Clone(to.mem)
			for j, at := range r.Perm(count) {
				n := 1 + uint64(r.IntN(64))
				src, dst := uint64(j)*stride, half+uint64(at)*stride
				plan[from] = append(plan[from], Range{Local: from.base + src, Remote: to.base + dst, Length: n})
				copy(image[dst:dst+n], from.mem[src:src+n])
			}
			want[to] = image
			if err := from.tr.Write(to.record.Agent, uint64(i), plan[from], []byte("many")); err != nil {
				t.Fatal(err)
			}
		}
		d.awaitMessage([]byte("many"), p)
		p.awaitMessage([]byte("many"), d)
		for n, image := range want {
			n.load()
			if !bytes.Equal(n.mem, image) {
				t.Errorf("%s: memory differs", n.record.Agent)
			}
		}
		if err := errors.Join(p.awaitEnd(0, d), d.awaitEnd(1, p)); err != nil {
			t.Error(err)
		}
	})
}

// TestTransportInOrder posts many writes at once: each ends once, each notification comes once.
func TestTransportInOrder(t *testing.T) {
	const count = 64
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, count*4096)
		scribble(p.mem, 9)
		p.store()
		for i := range count {
			at := uint64(i * 4096)
			if err := p.tr.Write("d@1", uint64(i), []Range{{Local: p.base + at, Remote: d.base + at, Length: 4096}}, []byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range count {
			d.awaitMessage([]byte{byte(i)}, p)
			d.load()
			if at := i * 4096; !bytes.Equal(d.mem[at:at+4096], p.mem[at:at+4096]) {
				t.Fatalf("write %d: the bytes differ when the notification has come", i)
			}
			if err := p.awaitEnd(uint64(i), d); err != nil {
				t.Fatal(err)
			}
		}
		for range 10 {
			p.poll()
			d.poll()
		}
		if len(p.got)+len(d.got) != 0 {
			t.Errorf("left over: %v %v", p.got, d.got)
		}
	})
}

// TestTransportEmptyWrite: a write of no bytes is a notification with an end.
func TestTransportEmptyWrite(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 4096)
		if err := p.tr.Write("d@1", 5, nil, []byte("nothing to write")); err != nil {
			t.Fatal(err)
		}
		d.awaitMessage([]byte("nothing to write"), p)
		if err := p.awaitEnd(5, d); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTransportRefusesRanges(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 8192)
		before := bytes.Clone(d.mem)
		end := d.base + 8192
		for name, r := range map[string]Range{
			"remote below":       {Local: p.base, Remote: d.base - 1, Length: 16},
			"remote past end":    {Local: p.base, Remote: end - 15, Length: 16},
			"remote after end":   {Local: p.base, Remote: end, Length: 1},
			"remote wraps":       {Local: p.base, Remote: ^uint64(0) - 7, Length: 16},
			"remote length":      {Local: p.base, Remote: d.base + 1, Length: ^uint64(0)},
			"remote zero":        {Local: p.base, Remote: 0, Length: 8},
			"local below":        {Local: p.base - 1, Remote: d.base, Length: 16},
			"local past end":     {Local: p.base + 8192 - 15, Remote: d.base, Length: 16},
			"empty":              {Local: p.base, Remote: d.base, Length: 0},
			"second of two only": {Local: p.base, Remote: end, Length: 4},
		} {
			ranges := []Range{r}
			if name == "second of two only" {
				ranges = []Range{{Local: p.base, Remote: d.base, Length: 4}, r}
			}
			if err := p.tr.Write("d@1", 1, ranges, []byte("no")); err == nil {
				t.Errorf("%s: posted", name)
			}
		}
		if err := p.tr.Write("d@1", 2, []Range{{Local: p.base, Remote: d.base, Length: 1}}, []byte("yes")); err != nil {
			t.Fatal(err)
		}
		d.awaitMessage([]byte("yes"), p)
		d.load()
		if !bytes.Equal(d.mem[1:], before[1:]) {
			t.Error("memory was changed")
		}
		if err := p.awaitEnd(2, d); err != nil {
			t.Error(err)
		}
	})
}

func TestTransportPeers(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 4096)
		if err := p.tr.Send("x@1", []byte("hello")); !errors.Is(err, ErrUnknownPeer) {
			t.Errorf("message to a stranger: %v; want ErrUnknownPeer", err)
		}
		if err := p.tr.Write("x@1", 1, []Range{{Local: p.base, Remote: d.base, Length: 1}}, nil); !errors.Is(err, ErrUnknownPeer) {
			t.Errorf("write to a stranger: %v; want ErrUnknownPeer", err)
		}
		if err := p.tr.Connect(d.record); !errors.Is(err, ErrKnownPeer) {
			t.Errorf("second Connect: %v; want ErrKnownPeer", err)
		}
		broken := d.record
		broken.Agent, broken.Blob = "y@1", []byte("not a blob")
		if err := p.tr.Connect(broken); err == nil {
			t.Error("a broken blob was taken")
		}
		other := d.record
		other.Agent, other.Transport = "z@1", "smoke signals"
		if err := p.tr.Connect(other); err == nil {
			t.Error("a peer of another transport was taken")
		}
		p.tr.Disconnect("d@1")
		p.tr.Disconnect("d@1") // twice is harmless
		if err := p.tr.Send("d@1", []byte("gone")); !errors.Is(err, ErrUnknownPeer) {
			t.Errorf("message after Disconnect: %v; want ErrUnknownPeer", err)
		}
		p.connect(d)
		if err := p.tr.Send("d@1", []byte("back")); err != nil {
			t.Fatal(err)
		}
		d.awaitMessage([]byte("back"), p)
	})
}

// TestTransportReceiverCloses: the sender learns of it, and whatever it posts afterwards ends in an error.
func TestTransportReceiverCloses(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 1<<20)
		if err := p.tr.Write("d@1", 1, []Range{{Local: p.base, Remote: d.base, Length: 1 << 20}}, []byte("first")); err != nil {
			t.Fatal(err)
		}
		d.awaitMessage([]byte("first"), p)
		if err := p.awaitEnd(1, d); err != nil {
			t.Fatal(err)
		}
		if err := d.tr.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.tr.Write("d@1", 2, []Range{{Local: p.base, Remote: d.base, Length: 1 << 20}}, []byte("second")); err == nil {
			if err := p.awaitEnd(2); err == nil {
				t.Error("a write to a closed receiver ended well")
			}
		}
		lost := p.await("peer lost", func(in Incoming) bool { return in.Kind == PeerLost })
		if lost.Agent != "d@1" || lost.Err == nil {
			t.Errorf("lost %q: %v; want d@1 and why", lost.Agent, lost.Err)
		}
		if err := p.tr.Write("d@1", 3, []Range{{Local: p.base, Remote: d.base, Length: 1}}, nil); !errors.Is(err, ErrPeerLost) {
			t.Errorf("write to a lost peer: %v; want ErrPeerLost", err)
		}
		p.tr.Disconnect("d@1")
	})
}

// TestTransportClosed: a closed transport refuses everything and has nothing to tell.
func TestTransportClosed(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 4096)
		if err := p.tr.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.tr.Send("d@1", []byte("x")); !errors.Is(err, ErrClosed) {
			t.Errorf("Send: %v; want ErrClosed", err)
		}
		if err := p.tr.Write("d@1", 1, []Range{{Local: p.base, Remote: d.base, Length: 1}}, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("Write: %v; want ErrClosed", err)
		}
		if err := p.tr.Connect(d.record); !errors.Is(err, ErrClosed) {
			t.Errorf("Connect: %v; want ErrClosed", err)
		}
		p.tr.Disconnect("d@1")
		if got := p.tr.Poll(nil); len(got) != 0 {
			t.Errorf("Poll: %v", got)
		}
	})
}

// TestTransportWake: an owner that sleeps until Wake rings sees a message.
func TestTransportWake(t *testing.T) {
	conformance(t, func(t *testing.T, pair pairing) {
		p, d := pair(t, 4096)
		for _, way := range [][2]*node{{p, d}, {d, p}} { // wire up
			if err := way[0].tr.Send(way[1].record.Agent, []byte("first")); err != nil {
				t.Fatal(err)
			}
			way[1].awaitMessage([]byte("first"), way[0])
		}
		for i := range 20 {
			for len(d.tr.Wake()) > 0 {
				<-d.tr.Wake()
			}
			body := fmt.Appendf(nil, "wake %d", i)
			if err := p.tr.Send("d@1", body); err != nil {
				t.Fatal(err)
			}
			// From here d polls only when it was woken.
			deadline := time.After(patience)
			for seen := false; !seen; {
				select {
				case <-d.tr.Wake():
				case <-deadline:
					t.Fatalf("message %d: nothing woke the sleeping owner", i)
				}
				for range 1000 { // NIXL: the datagram may overtake the message
					d.poll()
					p.poll()
					if len(d.got) > 0 {
						break
					}
				}
				for _, in := range d.got {
					seen = seen || bytes.Equal(in.Body, body)
				}
				d.got = nil
			}
		}
	})
}
