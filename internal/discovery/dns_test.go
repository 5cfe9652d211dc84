package discovery

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/dnstest"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func texts(all []netip.AddrPort) (out []string) {
	for _, a := range all {
		out = append(out, a.String())
	}
	return out
}

// TestLookupAsksAServer asks a real server, over real datagrams, for each kind of name.
func TestLookupAsksAServer(t *testing.T) {
	server := dnstest.Start(t)
	server.Set("prefill.svc", "10.0.0.8", "fd00::7", "10.0.0.7", "10.0.0.7")
	server.Set("one.svc", "10.0.1.1")
	server.Set("two.svc", "10.0.1.2", "10.0.1.3")
	server.Set("none.svc")
	server.Set("odd.svc", "0.0.0.0", "224.0.0.1", "10.0.0.1")
	server.SetServices("_openai._tcp.svc", dnstest.Service{Target: "one.svc", Port: 8001}, dnstest.Service{Target: "two.svc", Port: 8002},
		dnstest.Service{Target: "one.svc", Port: 8003})
	server.SetServices("_half._tcp.svc", dnstest.Service{Target: "one.svc", Port: 8001}, dnstest.Service{Target: "missing.svc", Port: 8002})
	for _, c := range []struct {
		base, allow string
		want        []string
		refused     int
		err         string
	}{
		{base: "http://prefill.svc:8000", want: []string{"10.0.0.7:8000", "10.0.0.8:8000", "[fd00::7]:8000"}},
		{base: "http://prefill.svc", allow: "10.0.0.0/29", want: []string{"10.0.0.7:80"}, refused: 2},
		{base: "https://prefill.svc", allow: "fd00::/16", want: []string{"[fd00::7]:443"}, refused: 3},
		{base: "http://prefill.svc", allow: "192.168.0.0/16", refused: 4, err: "none of 4 addresses is allowed"},
		{base: "http://odd.svc:1", want: []string{"10.0.0.1:1"}, refused: 2},
		{base: "http://_openai._tcp.svc", want: []string{"10.0.1.1:8001", "10.0.1.1:8003", "10.0.1.2:8002", "10.0.1.3:8002"}},
		{base: "http://_half._tcp.svc", err: "missing.svc"},
		{base: "http://none.svc:1", err: "no such host"},
		{base: "http://nobody.svc:1", err: "no such host"},
		{base: "http://10.9.9.9:7", want: []string{"10.9.9.9:7"}},
	} {
		n, err := ParseName(c.base)
		if err != nil {
			t.Fatal(err)
		}
		if c.allow != "" {
			n.Allow = []netip.Prefix{netip.MustParsePrefix(c.allow)}
		}
		got, refused, err := lookup(t.Context(), ServerAt(server.Address()), n)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || got != nil {
				t.Errorf("%s: got %v, %v; want an error with %q", c.base, got, err, c.err)
			}
		} else if err != nil {
			t.Errorf("%s: %v", c.base, err)
		}
		if diff := cmp.Diff(texts(got), c.want); diff != "" || refused != c.refused {
			t.Errorf("%s: %d refused, want %d (-got +want):\n%s", c.base, refused, c.refused, diff)
		}
	}
	server.Fail(dnstest.ServFail)
	if got, _, err := lookup(t.Context(), ServerAt(server.Address()), Name{Host: "prefill.svc", Port: 1}); err == nil {
		t.Errorf("got %v of a server that fails", got)
	}
}

// fakeResolver answers as it is told, in virtual time.
type fakeResolver struct {
	mu   sync.Mutex
	ips  []netip.Addr
	err  error
	hang bool
}

func (f *fakeResolver) set(err error, ips ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err, f.ips = err, nil
	for _, ip := range ips {
		f.ips = append(f.ips, netip.MustParseAddr(ip))
	}
}

func (f *fakeResolver) setHang(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hang = on
}

func (f *fakeResolver) LookupNetIP(ctx context.Context, network, _ string) ([]netip.Addr, error) {
	f.mu.Lock()
	var ips []netip.Addr
	for _, ip := range f.ips {
		if ip.Unmap().Is4() == (network == "ip4") {
			ips = append(ips, ip)
		}
	}
	err, hang := f.err, f.hang
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return ips, err
}

func (f *fakeResolver) LookupSRV(context.Context, string, string, string) (string, []*net.SRV, error) {
	return "", nil, errors.New("no services")
}

// TestDNSRun follows a name through a failure, a server that hangs and an engine with requests, in virtual time.
func TestDNSRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &fakeResolver{}
		r.set(nil, "10.0.0.1", "10.0.0.2")
		var mu sync.Mutex
		var told []Member
		busy := true
		d := newDNS(Name{Host: "x", Port: 80, Damping: Damping{MaxStale: time.Minute}}, r,
			func(netip.AddrPort) bool { mu.Lock(); defer mu.Unlock(); return busy },
			func(m []Member) { mu.Lock(); defer mu.Unlock(); told = m }, quiet())
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- d.Run(ctx) }()
		expect := func(when string, used, leaving int, stale bool) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			s := d.Stats()
			if s.Known != used || s.Leaving != leaving || s.Stale != stale || len(told) != used+leaving {
				t.Fatalf("%s: %+v, told %v; want %d used, %d leaving", when, s, told, used, leaving)
			}
		}
		expect("at once", 2, 0, false)
		r.set(errors.New("server misbehaving"))
		time.Sleep(30 * time.Second)
		expect("while DNS fails", 2, 0, false)
		if s := d.Stats(); s.Failures < 4 || s.Failures > 8 || s.Asked != s.Failures+1 {
			t.Errorf("%+v; want every look counted", s)
		}
		r.set(nil, "10.0.0.1")
		time.Sleep(6 * time.Second)
		expect("when one is lacking", 2, 0, false)
		time.Sleep(20 * time.Second)
		expect("when it has lacked for long", 1, 1, false)
		time.Sleep(time.Minute)
		expect("while it has requests", 1, 1, false)
		mu.Lock()
		busy = false
		mu.Unlock()
		time.Sleep(settleEvery)
		expect("when they have ended", 1, 0, false)
		r.setHang(true)
		time.Sleep(50 * time.Second)
		expect("while the server hangs", 1, 0, false)
		mu.Lock()
		busy = true
		mu.Unlock()
		time.Sleep(30 * time.Second)
		expect("when it has hung for too long", 0, 1, true)
		r.setHang(false)
		time.Sleep(12 * time.Second)
		expect("when it answers again", 1, 0, false)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestDNSTakesOver has a name begin with what is known of it: that holds no longer than it would have, and the first answer is
// told though it brings nothing new.
func TestDNSTakesOver(t *testing.T) {
	one, two := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80")
	for _, row := range []struct {
		name     string
		known    []Member
		err      error
		after    time.Duration
		want     []Member // told last; nil if nothing is
		told     int
		isStale  bool
		dropBusy bool
	}{
		{"no answer yet", []Member{{At: one}}, errors.New("no"), 25 * time.Second, nil, 0, false, false},
		{"never an answer", []Member{{At: one}}, errors.New("no"), 40 * time.Second, []Member{{one, true}}, 1, true, false},
		{"never an answer, of another name", nil, errors.New("no"), 40 * time.Second, []Member{}, 1, true, false},
		{"the same answer", []Member{{At: one}}, nil, time.Minute, []Member{{At: one}}, 1, false, false},
		{"one was leaving and has requests", []Member{{At: one}, {two, true}}, nil, time.Minute, []Member{{At: one}, {two, true}}, 1, false, false},
		{"one was leaving", []Member{{At: one}, {two, true}}, nil, time.Minute, []Member{{At: one}}, 2, false, true},
		{"one is lacking", []Member{{At: one}, {At: two}}, nil, 5 * time.Second, []Member{{At: one}, {At: two}}, 1, false, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &fakeResolver{}
				r.set(row.err, "10.0.0.1")
				var mu sync.Mutex
				var last []Member
				told := 0
				d := newDNS(Name{Host: "x", Port: 80, Damping: Damping{MaxStale: time.Minute}}, r, func(netip.AddrPort) bool { return !row.dropBusy },
					func(m []Member) {
						mu.Lock()
						defer mu.Unlock()
						told++
						last = append([]Member{}, m...)
					}, quiet())
				d.Seed(row.known, time.Now().Add(-30*time.Second))
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- d.Run(ctx) }()
				time.Sleep(row.after)
				synctest.Wait()
				mu.Lock()
				if diff := cmp.Diff(last, row.want, cmp.Comparer(func(x, y netip.AddrPort) bool { return x == y })); diff != "" || told != row.told || d.Stats().Stale != row.isStale {
					t.Errorf("told %d times, want %d; %+v (-got +want):\n%s", told, row.told, d.Stats(), diff)
				}
				mu.Unlock()
				stop()
				<-ended
			})
		})
	}
}
