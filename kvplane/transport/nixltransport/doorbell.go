package nixltransport

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"pdrouter/kvplane/transport"
)

// doorbell is a datagram socket whose arrivals wake an owner that sleeps. What a datagram holds is not looked at, and
// a lost one does no harm: what it announced is sent again.
type doorbell struct {
	wake chan struct{}
	rang atomic.Pointer[time.Time] // when it rang first since it was last asked; nil: it has not
	conn *net.UDPConn
	done chan struct{} // closed when the listening goroutine has ended
}

func newDoorbell() *doorbell { return &doorbell{wake: make(chan struct{}, 1)} }

// listen opens the socket and returns the address that peers ring.
func (d *doorbell) listen(at, advertise string) (string, error) {
	addr, err := netip.ParseAddrPort(at)
	if err != nil {
		return "", fmt.Errorf("doorbell: %w", err)
	}
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return "", fmt.Errorf("doorbell: %w", err)
	}
	own := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	ip := addr.Addr()
	if advertise != "" {
		ip, err = netip.ParseAddr(advertise)
	}
	if err == nil && ip.IsUnspecified() {
		err = fmt.Errorf("listening on %s needs an address to advertise", own)
	}
	if err != nil {
		_ = conn.Close() // nothing was sent on it
		return "", fmt.Errorf("doorbell: %w", err)
	}
	d.conn, d.done = conn, make(chan struct{})
	go d.listening()
	return netip.AddrPortFrom(ip, own.Port()).String(), nil
}

func (d *doorbell) listening() {
	defer close(d.done)
	var none [1]byte
	for {
		if _, _, err := d.conn.ReadFromUDPAddrPort(none[:]); err != nil {
			return // closed; a datagram socket that is not connected reads no other error
		}
		now := time.Now()
		d.rang.CompareAndSwap(nil, &now)
		select {
		case d.wake <- struct{}{}:
		default: // it rings already
		}
	}
}

const (
	// alert is how long a peer is not rung for after it has spoken: it is polling still, for Attention.
	alert = transport.Attention / 2
	// expectant is how long one is not rung for that is written to: it has asked for that, and polls, and be it in Dozing.
	expectant = transport.Dozing / 2
)

// ringFor wakes a peer's owner, unless it has spoken within so long.
func (t *Transport) ringFor(p *knownPeer, within time.Duration) {
	if time.Since(p.heard) > within {
		t.bell.ring(p.bell)
	}
}

// ring wakes a peer's owner. It does not block: a full socket buffer drops the datagram.
func (d *doorbell) ring(peer netip.AddrPort) {
	if d.conn != nil && peer.IsValid() {
		_, _ = d.conn.WriteToUDPAddrPort([]byte{0}, peer) // it may be lost, and so may its error
	}
}

// close ends the goroutine. Safe to call twice.
func (d *doorbell) close() error {
	if d.conn == nil {
		return nil
	}
	err := d.conn.Close()
	<-d.done
	d.conn = nil
	return err
}
