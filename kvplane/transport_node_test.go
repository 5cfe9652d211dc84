package kvplane

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pdrouter/kvplane/internal/procid"
	"pdrouter/kvplane/memory"
	"pdrouter/metadata"
)

// patience is how long a test waits for something that must happen.
const patience = 60 * time.Second

// pairing opens two connected agents with size bytes of memory each.
type pairing func(t *testing.T, size int) (p, d *node)

// conformance runs a test over every transport and every kind of memory this machine has.
func conformance(t *testing.T, test func(t *testing.T, pair pairing)) {
	for _, l := range links {
		if l.tls != "" {
			continue // a way between processes
		}
		t.Run(l.title, func(t *testing.T) {
			test(t, func(t *testing.T, size int) (p, d *node) {
				l.prepare(t)
				return joined(l.open(t, "p@1", size, 0), l.open(t, "d@1", size, 0xee))
			})
		})
	}
}

// link is a transport, the memory that it moves, and the way that its bytes take.
type link struct {
	title, transport, memory string

	tls     string // nixl: the transports of UCX
	path    string // tcp
	streams int    // tcp
}

// links are the ways between two agents.
var links = []link{
	{title: "tcp", transport: "tcp"},
	{title: "tcp-memory", transport: "tcp", path: pathMemory, streams: 2},
	{title: "tcp-socket", transport: "tcp", path: pathSocket},
	{title: "tcp-copied", transport: "tcp", memory: "copied", path: pathSocket, streams: 3},
	{title: "nixl", transport: "nixl"}, {title: "nixl-tcp", transport: "nixl", tls: "tcp"},
	{title: "nixl-vram", transport: "nixl", memory: "vram"}, {title: "nixl-vram-tcp", transport: "nixl", memory: "vram", tls: "tcp,cuda_copy"},
}

func linkNamed(t *testing.T, title string) link {
	t.Helper()
	at := slices.IndexFunc(links, func(l link) bool { return l.title == title })
	if at < 0 {
		t.Fatalf("no link is called %q", title)
	}
	return links[at]
}

// prepare sets the environment, or skips the test on a machine that lacks what the link needs.
func (l link) prepare(t *testing.T) {
	t.Helper()
	if err := l.missing(); err != nil {
		t.Skipf("SKIPPED, not run over %s: %v", l.title, err)
	}
	t.Setenv("UCX_TLS", cmp.Or(l.tls, ucxTLS)) // as it was found, also after a link that sets it
	if l.tls == "" && ucxTLS == "" {
		_ = os.Unsetenv("UCX_TLS") // the name is valid
	}
}

var ucxTLS = os.Getenv("UCX_TLS")

// missing says why this machine cannot have the link.
func (l link) missing() error {
	if l.memory == "vram" {
		if _, err := openGPU(); err != nil {
			return err
		}
	}
	if l.path == pathMemory {
		return memoryPermitted()
	}
	if l.transport == "nixl" {
		_, err := openNIXL()
		return err
	}
	return nil
}

// wired says whether a link is to go from one namespace to another: tcp that finds no memory there, tcp over several
// connections, and NIXL without shared memory.
func (l link) wired() bool {
	return l.title == "tcp" || l.title == "tcp-copied" || l.title == "nixl-tcp"
}

// hostVariable is the address that an agent listens on in the namespaces of TestTransportNamespaces.
const hostVariable = "PDROUTER_TEST_HOST"

func namespaced() bool { return os.Getenv(hostVariable) != "" }

// memoryPermitted says why a process here may not read another one of the same user that is not its child.
func memoryPermitted() error {
	if procid.Self().IsZero() {
		return errors.New("a process cannot be told by its number here")
	}
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err == nil && strings.TrimSpace(string(scope)) != "0" && os.Geteuid() != 0 {
		return fmt.Errorf("kernel.yama.ptrace_scope is %s", bytes.TrimSpace(scope))
	}
	return nil
}

func (l link) open(t testing.TB, name string, n int, fill byte) *node {
	t.Helper()
	tr, host := newTransport(t, l.transport), "127.0.0.1"
	if namespaced() {
		host = os.Getenv(hostVariable)
	}
	if l.transport == "nixl" && namespaced() {
		lib, err := openNIXL()
		if err != nil {
			t.Fatal(err)
		}
		tr = NewNIXL(lib, NIXLConfig{Doorbell: host + ":0"})
	}
	if l.transport == "tcp" {
		tcp := NewTCP(TCPConfig{Listen: host + ":0", Path: l.path, Streams: l.streams})
		t.Cleanup(func() {
			s := tcp.Stats()
			if namespaced() && s.MemoryBytes > 0 {
				t.Errorf("%d bytes did not go through sockets between two namespaces", s.MemoryBytes)
			}
			if l.path == pathMemory && s.SocketBytes > 0 || l.path == pathSocket && s.MemoryBytes > 0 || s.Landed != s.SocketBytes+s.MemoryBytes {
				t.Errorf("over %s have landed %d bytes through sockets and %d through memory", l.title, s.SocketBytes, s.MemoryBytes)
			}
		})
		tr = tcp
	}
	return openNodeIn(t, tr, name, newRoom(t, l.memory, n), fill)
}

// node is one agent under test: a transport, its memory and what it has taken in. What a test writes into mem is
// seen by the transport after store, what the transport has written is seen in mem after load.
type node struct {
	t      testing.TB
	tr     Transport
	record metadata.Record
	room   room
	mem    []byte
	base   uint64
	got    []Incoming
}

// openNode opens an agent with n bytes of registered memory, all of them fill.
func openNode(t testing.TB, tr Transport, name string, n int, fill byte) *node {
	t.Helper()
	return openNodeIn(t, tr, name, newRoom(t, "", n), fill)
}

func openNodeIn(t testing.TB, tr Transport, name string, r room, fill byte) *node {
	t.Helper()
	n := &node{t: t, tr: tr, room: r, mem: r.bytes, base: r.memory.Base}
	paint(n.mem, fill)
	n.store()
	blob, doorbell, err := tr.Open(name, []memory.Region{r.memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(tr.Close(), tr.Close()); err != nil { // twice: it must be safe
			t.Error(err)
		}
	})
	n.record = metadata.Record{Agent: name, Transport: tr.Name(), Blob: blob, Doorbell: doorbell}
	return n
}

func (n *node) connect(peer *node) {
	n.t.Helper()
	if err := n.tr.Connect(peer.record); err != nil {
		n.t.Fatal(err)
	}
}

// await polls all nodes until n has taken in something that fits, which it takes out and returns.
func (n *node) await(what string, fits func(Incoming) bool, others ...*node) Incoming {
	n.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		for i, in := range n.got {
			if fits(in) {
				n.got = append(n.got[:i:i], n.got[i+1:]...)
				return in
			}
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("%s: no %s within %v; has %v", n.record.Agent, what, patience, n.got)
		}
		before := len(n.got)
		n.poll()
		for _, o := range others {
			o.poll()
		}
		if len(n.got) == before {
			time.Sleep(idle)
		}
	}
}

func (n *node) poll() { n.got = n.tr.Poll(n.got) }

func (n *node) awaitMessage(body []byte, others ...*node) Incoming {
	n.t.Helper()
	return n.await("message", func(in Incoming) bool {
		return in.Kind == MessageReceived && bytes.Equal(in.Body, body)
	}, others...)
}

func (n *node) awaitEnd(id uint64, others ...*node) error {
	n.t.Helper()
	return n.await(fmt.Sprintf("end of write %d", id), func(in Incoming) bool {
		return in.Kind == WriteEnded && in.ID == id
	}, others...).Err
}

// pair opens two connected agents.
func pair(t *testing.T, open func(testing.TB) Transport, size int) (p, d *node) {
	t.Helper()
	return joined(openNode(t, open(t), "p@1", size, 0), openNode(t, open(t), "d@1", size, 0xee))
}

// joined connects two agents both ways.
func joined(p, d *node) (*node, *node) {
	p.t.Helper()
	p.connect(d)
	d.connect(p)
	return p, d
}

// paint sets every byte.
func paint(b []byte, to byte) {
	if to == 0 {
		clear(b)
		return
	}
	page := bytes.Repeat([]byte{to}, 4096)
	for len(b) > 0 {
		b = b[copy(b, page):]
	}
}

// scribble fills memory with bytes that differ everywhere.
func scribble(b []byte, seed uint64) {
	c := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = c.Read(b) // never fails
}

// openDescriptors counts this process's file descriptors.
func openDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc/self/fd here:", err)
	}
	return len(entries)
}
