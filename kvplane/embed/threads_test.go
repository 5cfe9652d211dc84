package embed

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"

	"pdrouter/internal/pdkvtest"
	"pdrouter/kvplane"
	"pdrouter/kvplane/memory"
	"pdrouter/metadata"
)

// TestThreads: every call at once from many goroutines, and then in the middle of it the end. What is checked is that the
// race detector is content, that nothing hangs, and that no transfer is released that was never offered.
func TestThreads(t *testing.T) {
	g := pdkvtest.NewGateway(t)
	p, d := newEngine(t, g, "prefill-0", metadata.Prefill, 2, ""), newEngine(t, g, "decode-0", metadata.Decode, 1, "")
	var calls, ends sync.WaitGroup
	half := make(chan struct{})
	for i := range 4 {
		calls.Go(func() {
			buf, n := make([]byte, 1<<20), 0
			for j := range 200 {
				if i == 0 && j == 100 {
					close(half)
				}
				id := kvplane.NewTransferID()
				x := &Transfer{ID: id, Peer: p.inc, To: 7, Groups: list(5, 2)}
				_ = d.scheduler.Queue(id, p.inc)
				_ = d.scheduler.Expect(x)
				_ = d.scheduler.Cancel(id, "over")
				d.scheduler.CancelledByGateway(id, "over")
				for _, e := range []*engine{p, d} {
					if e.scheduler.Orders(buf, &n) == nil {
						for _, r := range e.ranks {
							_ = r.Do(buf[:n])
						}
					}
					for _, r := range e.ranks {
						if r.Collect(buf, &n) == nil {
							_ = e.scheduler.Hear(buf[:n])
						}
						_, _ = r.Poll(buf, &n)
						_, _ = r.Status()
						_ = r.Gone(metadata.Incarnation{Engine: "nobody", Generation: 1})
					}
					count, _ := e.scheduler.Poll(buf, &n)
					for b := buf[:n]; count > 0; count-- {
						if Kind(binary.NativeEndian.Uint32(b[4:])) == Released {
							t.Error("released")
						}
						b = b[binary.NativeEndian.Uint32(b):]
					}
					_, _ = e.scheduler.Status()
					_ = e.scheduler.FD()
				}
			}
		})
	}
	for range 2 {
		ends.Go(func() {
			<-half
			p.close()
			d.close()
		})
	}
	calls.Wait()
	ends.Wait()
}

// TestClean: what is old in the last blocks is cleared before anybody hears that the rank is ready; on a device the caller
// is asked to.
func TestClean(t *testing.T) {
	b, free, err := memory.Allocate(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	copy(b, bytes.Repeat([]byte{1}, 4096))
	at := memory.Of(b).Base
	ready := func() []kvplane.Report {
		return []kvplane.Report{{ID: kvplane.TransferID{1}, Kind: kvplane.Ready, Rest: []kvplane.Range{{Local: at + 100, Length: 50}, {Local: at + 200, Length: 1}}}}
	}
	device := &Rank{cfg: Config{Cache: Cache{Memory: "vram"}}}
	clears := device.clean(ready())
	if len(clears) != 1 || clears[0].Kind != Clear || len(clears[0].Ranges) != 2 || bytes.IndexByte(b, 0) >= 0 {
		t.Errorf("on a device: %+v", clears)
	}
	host := &Rank{cfg: Config{Cache: Cache{Memory: "dram"}}}
	reports := ready()
	clears = host.clean(reports)
	want := bytes.Repeat([]byte{1}, 4096)
	clear(want[100:150])
	want[200] = 0
	if len(clears) != 0 || reports[0].Rest != nil || !bytes.Equal(b, want) {
		t.Errorf("in the host's memory: %+v", clears)
	}
}
