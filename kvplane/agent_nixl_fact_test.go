package kvplane

import (
	"bytes"
	"testing"
	"time"
)

// F2: over TCP bytes of a writer land long after its death, when the receiver polls: they have waited in the
// receiver's own sockets. So the proof of death alone frees nothing; a drain must follow.
func TestNIXLFactF2DeadWriterLands(t *testing.T) {
	n, p := overTCP(t)
	p.do(order{Do: "fill", Seed: 6}, n)
	p.do(order{Do: "flood", Record: n.record, Ranges: []Range{{Local: p.base, Remote: n.base, Length: peerRoom}}}, nil)
	time.Sleep(200 * time.Millisecond) // the writer fills the sockets; nobody polls here
	p.kill()
	time.Sleep(time.Second)
	clear(n.mem)
	for range 2 {
		n.poll()
	}
	landed := len(n.mem) - bytes.Count(n.mem, []byte{0})
	t.Logf("about %d bytes landed 1 s after their writer's death", landed)
	if landed == 0 {
		t.Fatal("nothing of the dead writer has landed: F2 has changed, or its sockets were empty")
	}
}
