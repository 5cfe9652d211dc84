// Package discovery finds engines that come and go: by the addresses of a DNS name, and in a file that is watched. It owns
// when to look, what to believe of an answer, and when one that is not there any more is given up. It knows addresses and
// bytes, and nothing of engines: internal/fleetview makes entries of the router's configuration of what it finds.
package discovery

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Name is a DNS name that is resolved again and again.
type Name struct {
	Host  string         // what is looked up: addresses, or SRV if it begins with _
	Port  uint16         // of every address; SRV tells its own
	Every time.Duration  // between two looks, give or take a tenth; default 5s
	Allow []netip.Prefix // what an address must be in; none allows all
	Damping
}

// Damping says what is believed of answers.
type Damping struct {
	GoneAfter time.Duration // how long good answers must lack an address until it is given up; default 15s
	MaxStale  time.Duration // how long the last good answer holds while there is none; default 1h
}

func (d Damping) withDefaults() Damping {
	if d.GoneAfter == 0 {
		d.GoneAfter = 15 * time.Second
	}
	if d.MaxStale == 0 {
		d.MaxStale = time.Hour
	}
	return d
}

func (n Name) withDefaults() Name {
	if n.Every == 0 {
		n.Every = 5 * time.Second
	}
	n.Damping = n.Damping.withDefaults()
	return n
}

// ParseName returns what the base URL of engines says is to be looked up.
func ParseName(base string) (Name, error) {
	u, err := url.Parse(base)
	if err != nil {
		return Name{}, fmt.Errorf("discovery: %w", err)
	}
	n := Name{Host: u.Hostname()}
	switch {
	case n.Host == "":
		return Name{}, errors.New("discovery: no name to look up")
	case n.srv():
		return n, nil
	case u.Port() != "":
		port, err := strconv.ParseUint(u.Port(), 10, 16)
		if err != nil {
			return Name{}, fmt.Errorf("discovery: port of %s: %w", n.Host, err)
		}
		n.Port = uint16(port)
	case u.Scheme == "https":
		n.Port = 443
	default:
		n.Port = 80
	}
	return n, nil
}

func (n Name) srv() bool { return strings.HasPrefix(n.Host, "_") }

// Allows reports whether something at this address may be sent requests.
func (n Name) Allows(at netip.Addr) bool {
	if at.IsUnspecified() || at.IsMulticast() || at.Zone() != "" {
		return false
	}
	for _, p := range n.Allow {
		if p.Contains(at) {
			return true
		}
	}
	return len(n.Allow) == 0
}

// jittered returns d give or take a tenth, so that gateways that were started together do not ask together.
func jittered(d time.Duration) time.Duration {
	return d - d/10 + rand.N(max(d/5, 1))
}

// ServerAt returns a resolver that asks the DNS server at address and no other.
func ServerAt(address string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: dialTo(address)}
}
