package transport_test

import (
	"cmp"
	"os"
	"slices"
	"testing"

	"pdrouter/kvplane/transport/nixltransport"
	"pdrouter/kvplane/transport/tcp"
	"pdrouter/kvplane/transport/transporttest"
)

// pairing opens two connected agents with size bytes of memory each.
type pairing func(t *testing.T, size int) (p, d *transporttest.Node)

// conformance runs a test over every transport and every kind of memory this machine has.
func conformance(t *testing.T, test func(t *testing.T, pair pairing)) {
	for _, l := range links {
		if l.tls != "" {
			continue // a way between processes
		}
		t.Run(l.title, func(t *testing.T) {
			test(t, func(t *testing.T, size int) (p, d *transporttest.Node) {
				l.prepare(t)
				return transporttest.Joined(l.open(t, "p@1", size, 0), l.open(t, "d@1", size, 0xee))
			})
		})
	}
}

// link is a transport, the memory that it moves, and the way that its bytes take.
type link struct {
	title, transport, memory string

	tls  string // nixl: the transports of UCX
	path string // tcp
}

// links are the ways between two agents.
var links = []link{
	{title: "tcp", transport: "tcp"},
	{title: "tcp-memory", transport: "tcp", path: tcp.PathMemory},
	{title: "tcp-socket", transport: "tcp", path: tcp.PathSocket},
	{title: "tcp-copied", transport: "tcp", memory: "copied", path: tcp.PathSocket},
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
		if _, err := transporttest.OpenGPU(); err != nil {
			return err
		}
	}
	if l.path == tcp.PathMemory {
		return transporttest.MemoryPermitted()
	}
	if l.transport == "nixl" {
		_, err := transporttest.NIXL()
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

func (l link) open(t testing.TB, name string, n int, fill byte) *transporttest.Node {
	t.Helper()
	host, memory := "127.0.0.1", transporttest.NewRoom(t, l.memory, n)
	if namespaced() {
		host = os.Getenv(hostVariable)
	}
	if l.transport == "nixl" {
		return transporttest.OpenNodeIn(t, nixltransport.New(transporttest.OpenNIXL(t), nixltransport.Config{Doorbell: host + ":0"}), name, memory, fill)
	}
	tr := tcp.New(tcp.Config{Listen: host + ":0", Path: l.path})
	t.Cleanup(func() {
		s := tr.Stats()
		if namespaced() && s.MemoryBytes > 0 {
			t.Errorf("%d bytes did not go through sockets between two namespaces", s.MemoryBytes)
		}
		if l.path == tcp.PathMemory && s.SocketBytes > 0 || l.path == tcp.PathSocket && s.MemoryBytes > 0 || s.Landed != s.SocketBytes+s.MemoryBytes {
			t.Errorf("over %s have landed %d bytes through sockets and %d through memory", l.title, s.SocketBytes, s.MemoryBytes)
		}
	})
	opened := transporttest.OpenNodeIn(t, tr, name, memory, fill)
	opened.Stats = func() any { return tr.Stats() }
	return opened
}
