package discovery

import (
	"context"
	"net"
	"net/netip"
	"testing"
)

// fakeFamilies fails for the networks that it has an error for.
type fakeFamilies map[string]error

func (f fakeFamilies) LookupNetIP(_ context.Context, network, _ string) ([]netip.Addr, error) {
	if err := f[network]; err != nil {
		return nil, err
	}
	return []netip.Addr{netip.MustParseAddr(map[string]string{"ip4": "10.0.0.7", "ip6": "fd00::7"}[network])}, nil
}

func (fakeFamilies) LookupSRV(context.Context, string, string, string) (string, []*net.SRV, error) {
	return "", nil, nil
}

// TestHalfAnAnswerIsNone has one family of addresses fail: the engines of the other one are not all there are.
func TestHalfAnAnswerIsNone(t *testing.T) {
	none, fails := &net.DNSError{Err: "no such host", IsNotFound: true}, &net.DNSError{Err: "server misbehaving", IsTemporary: true}
	for _, row := range []struct {
		r    fakeFamilies
		want int // 0: an error
	}{
		{fakeFamilies{}, 2}, {fakeFamilies{"ip4": none}, 1}, {fakeFamilies{"ip6": none}, 1}, {fakeFamilies{"ip6": &net.AddrError{}}, 1},
		{fakeFamilies{"ip4": fails}, 0}, {fakeFamilies{"ip6": fails}, 0}, {fakeFamilies{"ip4": none, "ip6": none}, 0}, {fakeFamilies{"ip4": none, "ip6": fails}, 0},
	} {
		got, _, err := lookup(t.Context(), row.r, Name{Host: "engines.test", Port: 1})
		if len(got) != row.want || (err == nil) != (row.want > 0) {
			t.Errorf("%v: %v %v; want %d", row.r, got, err, row.want)
		}
	}
}
