package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

const (
	// askWithin bounds one look at a name, with all that it leads to.
	askWithin = 5 * time.Second
	// mostAddresses bounds the engines of one name.
	mostAddresses = 1024
)

// resolver is what a net.Resolver does here.
type resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// dialTo returns a dialer that reaches one address, whatever the system would have asked.
func dialTo(address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
}

// errNothing is an answer without an address.
var errNothing = errors.New("the answer has no address")

// lookup asks for a name once, within askWithin. It returns the addresses that are allowed, in order, and how many are not.
// An answer without an address is an error, and so is one of which a part could not be had: what is not there must be known
// not to be.
func lookup(ctx context.Context, r resolver, n Name) (answer []netip.AddrPort, refused int, err error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if !n.srv() {
		answer, err = addresses(ctx, r, n.Host, n.Port)
	} else {
		answer, err = services(ctx, r, n.Host)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("discovery: %s: %w", n.Host, err)
	}
	if len(answer) == 0 {
		return nil, 0, fmt.Errorf("discovery: %s: %w", n.Host, errNothing)
	}
	found := len(answer)
	answer = slices.DeleteFunc(answer, func(at netip.AddrPort) bool { return at.Port() == 0 || !n.Allows(at.Addr()) })
	refused = found - len(answer)
	slices.SortFunc(answer, netip.AddrPort.Compare)
	answer = slices.Compact(answer)
	if len(answer) > mostAddresses {
		return nil, refused, fmt.Errorf("discovery: %s: %d addresses; want at most %d", n.Host, len(answer), mostAddresses)
	}
	if len(answer) == 0 {
		return nil, refused, fmt.Errorf("discovery: %s: none of %d addresses is allowed", n.Host, refused)
	}
	return answer, refused, nil
}

func addresses(ctx context.Context, r resolver, host string, port uint16) ([]netip.AddrPort, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(ip.Unmap(), port)}, nil
	}
	var ips []netip.Addr
	var nothing error
	for _, network := range []string{"ip4", "ip6"} { // apart: asked for both, a resolver takes one for the whole where the other failed
		some, err := r.LookupNetIP(ctx, network, host)
		var lookup *net.DNSError
		var unsuitable *net.AddrError
		switch {
		case errors.As(err, &lookup) && lookup.IsNotFound, errors.As(err, &unsuitable): // there is none of this family
			nothing = err
		case err != nil:
			return nil, err
		}
		ips = append(ips, some...)
	}
	if len(ips) == 0 && nothing != nil {
		return nil, nothing
	}
	all := make([]netip.AddrPort, 0, len(ips))
	for _, ip := range ips {
		all = append(all, netip.AddrPortFrom(ip.Unmap(), port))
	}
	return all, nil
}

func services(ctx context.Context, r resolver, name string) ([]netip.AddrPort, error) {
	_, records, err := r.LookupSRV(ctx, "", "", name)
	if err != nil {
		return nil, err
	}
	if len(records) > mostAddresses {
		return nil, fmt.Errorf("%d services; want at most %d", len(records), mostAddresses)
	}
	var all []netip.AddrPort
	hosts := map[string][]netip.Addr{} // asked for once each
	for _, srv := range records {
		host := strings.TrimSuffix(srv.Target, ".")
		ips, ok := hosts[host]
		if !ok {
			at, err := addresses(ctx, r, srv.Target, srv.Port)
			if err != nil {
				return nil, err
			}
			for _, a := range at {
				ips = append(ips, a.Addr())
			}
			hosts[host] = ips
		}
		for _, ip := range ips {
			all = append(all, netip.AddrPortFrom(ip, srv.Port))
		}
	}
	return all, nil
}
