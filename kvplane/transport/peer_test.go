package transport_test

import (
	"os"
	"os/exec"
	"testing"

	"pdrouter/kvplane/transport/transporttest"
)

// peerVariable makes the test binary a peer process: it holds the title of the link.
const peerVariable = "PDROUTER_TEST_TRANSPORT_PEER"

// TestTransportPeerProcess is the peer process of the tests below; on its own it does nothing.
func TestTransportPeerProcess(t *testing.T) {
	title := os.Getenv(peerVariable)
	if title == "" {
		t.Skip("only as the peer process of another test")
	}
	awaitWire(t)
	linkNamed(t, title).open(t, "peer@1", transporttest.PeerRoom, 0).Serve()
}

// startPeer runs this test binary again as the peer at the other end of a link.
func startPeer(t *testing.T, title string) *transporttest.Process {
	t.Helper()
	if namespaced() {
		return startPeerAs(t, title, farAway)
	}
	return startPeerAs(t, title, func(*exec.Cmd) func(int) error { return nil })
}

// startPeerAs is startPeer with a process that is started differently: change returns what is to be done when the
// process runs, or nil.
func startPeerAs(t *testing.T, title string, change func(*exec.Cmd) func(pid int) error) *transporttest.Process {
	t.Helper()
	p := transporttest.StartProcessAs(t, "TestTransportPeerProcess", change, peerVariable+"="+title)
	p.Title = title
	return p
}
