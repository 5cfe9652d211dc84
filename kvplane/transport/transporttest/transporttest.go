// Package transporttest has what tests of transports and of agents share: nodes with memory of every kind, and peers that are processes of
// their own. It is for tests alone.
package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/kvplane/internal/procid"
	"pdrouter/kvplane/memory"
	"pdrouter/kvplane/nixl"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// Patience is how long a test waits for something that must happen.
const Patience = 60 * time.Second

// Node is one agent under test: a transport, its memory and what it has taken in. What a test writes into mem is
// seen by the transport after store, what the transport has written is seen in mem after load.
type Node struct {
	T         testing.TB
	Transport transport.Transport
	Record    metadata.Record
	Room      Room
	Mem       []byte
	Base      uint64
	Got       []transport.Incoming
	Stats     func() any // what the transport counts; nil: nothing
}

// OpenNode opens an agent with n bytes of registered memory, all of them fill.
func OpenNode(t testing.TB, tr transport.Transport, name string, n int, fill byte) *Node {
	t.Helper()
	return OpenNodeIn(t, tr, name, NewRoom(t, "", n), fill)
}

// OpenNodeIn is OpenNode with memory of the given kind.
func OpenNodeIn(t testing.TB, tr transport.Transport, name string, r Room, fill byte) *Node {
	t.Helper()
	n := &Node{T: t, Transport: tr, Room: r, Mem: r.Bytes, Base: r.Memory.Base}
	Paint(n.Mem, fill)
	n.Store()
	blob, doorbell, err := tr.Open(name, []memory.Region{r.Memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(tr.Close(), tr.Close()); err != nil { // twice: it must be safe
			t.Error(err)
		}
	})
	n.Record = metadata.Record{Agent: name, Transport: tr.Name(), Blob: blob, Doorbell: doorbell}
	return n
}

// Connect makes a peer known to the node.
func (n *Node) Connect(peer *Node) {
	n.T.Helper()
	if err := n.Transport.Connect(peer.Record); err != nil {
		n.T.Fatal(err)
	}
}

// Await polls all nodes until n has taken in something that fits, which it takes out and returns.
func (n *Node) Await(what string, fits func(transport.Incoming) bool, others ...*Node) transport.Incoming {
	n.T.Helper()
	for deadline := time.Now().Add(Patience); ; {
		for i, in := range n.Got {
			if fits(in) {
				n.Got = append(n.Got[:i:i], n.Got[i+1:]...)
				return in
			}
		}
		if time.Now().After(deadline) {
			n.T.Fatalf("%s: no %s within %v; has %v", n.Record.Agent, what, Patience, n.Got)
		}
		before := len(n.Got)
		n.Poll()
		for _, o := range others {
			o.Poll()
		}
		if len(n.Got) == before {
			time.Sleep(Idle)
		}
	}
}

// Poll takes in what has come.
func (n *Node) Poll() { n.Got = n.Transport.Poll(n.Got) }

// AwaitMessage polls all nodes until n has this message.
func (n *Node) AwaitMessage(body []byte, others ...*Node) transport.Incoming {
	n.T.Helper()
	return n.Await("message", func(in transport.Incoming) bool {
		return in.Kind == transport.MessageReceived && bytes.Equal(in.Body, body)
	}, others...)
}

// AwaitEnd polls all nodes until a write of n has ended, and returns its error.
func (n *Node) AwaitEnd(id uint64, others ...*Node) error {
	n.T.Helper()
	return n.Await(fmt.Sprintf("end of write %d", id), func(in transport.Incoming) bool {
		return in.Kind == transport.WriteEnded && in.ID == id
	}, others...).Err
}

// Pair opens two connected agents.
func Pair(t *testing.T, open func(testing.TB) transport.Transport, size int) (p, d *Node) {
	t.Helper()
	return Joined(OpenNode(t, open(t), "p@1", size, 0), OpenNode(t, open(t), "d@1", size, 0xee))
}

// Joined connects two agents both ways.
func Joined(p, d *Node) (*Node, *Node) {
	p.T.Helper()
	p.Connect(d)
	d.Connect(p)
	return p, d
}

// Paint sets every byte.
func Paint(b []byte, to byte) {
	if to == 0 {
		clear(b)
		return
	}
	page := bytes.Repeat([]byte{to}, 4096)
	for len(b) > 0 {
		b = b[copy(b, page):]
	}
}

// Scribble fills memory with bytes that differ everywhere.
func Scribble(b []byte, seed uint64) {
	c := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = c.Read(b) // never fails
}

// OpenDescriptors counts this process's file descriptors.
func OpenDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc/self/fd here:", err)
	}
	return len(entries)
}

// Load brings what the transport has written into mem.
func (n *Node) Load() {
	n.T.Helper()
	if n.Room.load == nil {
		return
	}
	if err := n.Room.load(); err != nil {
		n.T.Fatal(err)
	}
}

// Store brings what the test has written into mem to where the transport reads.
func (n *Node) Store() {
	n.T.Helper()
	if n.Room.store == nil {
		return
	}
	if err := n.Room.store(); err != nil {
		n.T.Fatal(err)
	}
}

// MemoryPermitted says why a process here may not read another one of the same user that is not its child.
func MemoryPermitted() error {
	if procid.Self().IsZero() {
		return errors.New("a process cannot be told by its number here")
	}
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err == nil && strings.TrimSpace(string(scope)) != "0" && os.Geteuid() != 0 {
		return fmt.Errorf("kernel.yama.ptrace_scope is %s", bytes.TrimSpace(scope))
	}
	return nil
}

var nixlOnce = sync.OnceValues(func() (*nixl.Library, error) { return nixl.Open("") })

// NIXL returns the library that nixl.Find finds, opened once for all tests, or why there is none.
func NIXL() (*nixl.Library, error) { return nixlOnce() }

// OpenNIXL returns the library that nixl.Find finds, or skips the test on a machine without it.
func OpenNIXL(t testing.TB) *nixl.Library {
	t.Helper()
	lib, err := NIXL()
	if err != nil {
		t.Skip("SKIPPED, not run with real NIXL:", err)
	}
	return lib
}
