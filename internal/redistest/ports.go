package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// freePorts returns n ports of loopback that nobody listens on at this moment. They lie below the ports that systems
// give to outgoing connections: else one process that dials another's port before it listens may take the very port.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	const first, last = 12000, 20000
	var out []int
	for port, tried := first+rand.IntN(last-first), 0; len(out) < n; port, tried = port+1, tried+1 {
		if tried > last-first {
			t.Fatalf("no %d free ports between %d and %d", n, first, last)
		}
		if port >= last {
			port = first
		}
		if ln, err := net.Listen("tcp", loopback(port)); err == nil {
			ln.Close()
			out = append(out, port)
		}
	}
	return out
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func itoa(n int) string { return fmt.Sprint(n) }
