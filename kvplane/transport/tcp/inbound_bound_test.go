package tcp

import (
	"fmt"
	"testing"

	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
)

// TestAsManyWritersAsPeers: an agent may be connected to transport.MaxPeers peers, so as many may write to it.
func TestAsManyWritersAsPeers(t *testing.T) {
	d := transporttest.OpenNode(t, New(Config{}), "d@1", 8192, 0)
	secret := blobOf(t, d).Secret
	for i := range transport.MaxPeers {
		conn := connectRaw(t, d)
		if _, err := greet(conn, greeting{agent: fmt.Sprintf("p%d@1/0/0/0", i), session: 1}, d.Record.Agent, secret); err != nil {
			t.Fatalf("peer %d of the %d that an agent may have: %v", i+1, transport.MaxPeers, err)
		}
	}
}
