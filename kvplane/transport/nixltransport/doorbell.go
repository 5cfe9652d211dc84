package nixltransport

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"pdrouter/kvplane/transport"
)

// doorbell is a datagram socket whose arrivals wake an owner that sleeps. A lost datagram does no harm: what it announced is sent again. One that
// does not hold the owner's cookie is ignored, so that a stranger cannot keep the owner awake.
type doorbell struct {
	own  cookie
	wake chan struct{}
	rang atomic.Pointer[time.Time] // when it rang first since it was last asked; nil: it has not
	conn *net.UDPConn
	done chan struct{} // closed when the listening goroutine has ended
}

// cookie is what a datagram to one agent must hold. Who has the agent's record can compute it.
type cookie [16]byte

func cookieOf(blob []byte) cookie {
	sum := sha256.Sum256(append([]byte("pdrouter kvplane doorbell\x00"), blob...))
	return cookie(sum[:len(cookie{})])
}

func newDoorbell() *doorbell { return &doorbell{wake: make(chan struct{}, 1)} }

// listen opens the socket for datagrams with the agent's own cookie and returns the address that peers ring.
func (d *doorbell) listen(at, advertise string, c cookie) (string, error) {
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
	d.own, d.conn, d.done = c, conn, make(chan struct{})
	go d.listening()
	return netip.AddrPortFrom(ip, own.Port()).String(), nil
}

func (d *doorbell) listening() {
	defer close(d.done)
	var body [len(cookie{}) + 1]byte
	for {
		n, _, err := d.conn.ReadFromUDPAddrPort(body[:])
		if err != nil {
			return // closed; a datagram socket that is not connected reads no other error
		}
		if subtle.ConstantTimeCompare(body[:n], d.own[:]) == 0 {
			continue
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
		t.bell.ring(p)
	}
}

// ring wakes a peer's owner. It does not block: a full socket buffer drops the datagram.
func (d *doorbell) ring(p *knownPeer) {
	if d.conn != nil && p.bell.IsValid() {
		_, _ = d.conn.WriteToUDPAddrPort(p.cookie[:], p.bell) // it may be lost, and so may its error
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
