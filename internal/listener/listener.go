// Package listener has what net.Listener lacks. Package router calls it when a gateway stops.
package listener

import (
	"context"
	"net"
	"time"
)

// Settle is how long connections that are being opened get after RefuseNew: more than a round trip to any client.
const Settle = 250 * time.Millisecond

// Listen listens on a TCP address, without Multipath TCP: on a listener of that the kernel accepts no filter, which RefuseNew needs.
func Listen(address string) (net.Listener, error) {
	var c net.ListenConfig
	c.SetMultipathTCP(false)
	return c.Listen(context.Background(), "tcp", address)
}
