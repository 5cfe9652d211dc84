package limits

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// alone returns a limiter without others, in the bubble's time, and what admits with it.
func alone(t *testing.T) (*Limiter, func(Limits, int) (Lease, *Refusal)) {
	t.Helper()
	l := newLimiter(nil, quiet())
	return l, func(limits Limits, expected int) (Lease, *Refusal) { return l.Admit(time.Now(), "a", limits, expected) }
}

func TestRequestsPerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, admit := alone(t)
		limits := Limits{Requests: 60}
		for i := range 60 {
			e, no := admit(limits, 0)
			if no != nil {
				t.Fatalf("request %d of a full bucket: %+v", i, no)
			}
			if want := (Room{Limit: 60, Left: 59 - i, Full: time.Duration(i+1) * time.Second}); e.Requests != want {
				t.Errorf("request %d: got %+v; want %+v", i, e.Requests, want)
			}
		}
		_, no := admit(limits, 0)
		if no == nil || no.Limit != Requests || no.Max != 60 || no.After != time.Second || no.Requests.Left != 0 {
			t.Fatalf("behind the bucket's end: got %+v; want to come back after a second", no)
		}
		time.Sleep(no.After - time.Millisecond)
		if _, no := admit(limits, 0); no == nil {
			t.Error("admitted before its time")
		}
		time.Sleep(time.Millisecond)
		if _, no := admit(limits, 0); no != nil {
			t.Errorf("when it was told to come back: %+v", no)
		}
		time.Sleep(time.Hour)
		n := 0
		for ; ; n++ {
			if _, no := admit(limits, 0); no != nil {
				break
			}
		}
		if n != 60 {
			t.Errorf("after an hour of rest %d were admitted at once; want 60", n)
		}
	})
}

func TestTokensPerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, admit := alone(t)
		limits := Limits{Tokens: 600} // 10 a second
		e, no := admit(limits, 400)
		if no != nil || e.Tokens.Left != 200 {
			t.Fatalf("got %+v, %+v; want 200 left", e, no)
		}
		if _, no := admit(limits, 201); no == nil || no.Limit != Tokens || no.After != 100*time.Millisecond {
			t.Errorf("one token too many: got %+v; want to come back after a tenth of a second", no)
		}
		e.Done(time.Now(), 100) // gives 300 back
		e.Done(time.Now(), 9999)
		if e, no = admit(limits, 500); no != nil || e.Tokens.Left != 0 {
			t.Fatalf("what was given back is not there: %+v, %+v", e, no)
		}
		e.Done(time.Now(), 800) // 300 more than there were
		if _, no := admit(limits, 0); no == nil || no.After != 30*time.Second {
			t.Errorf("in debt: got %+v; want 30 s", no)
		}
		time.Sleep(30 * time.Second)
		if e, no = admit(limits, 0); no != nil {
			t.Errorf("out of debt: %+v", no)
		}
		e.Done(time.Now(), -1) // unknown: what was expected stays charged
		if _, no := admit(limits, 10_000); no == nil || no.After != time.Minute {
			t.Errorf("more than a bucket holds, and the bucket is not full: got %+v; want to wait until it is", no)
		}
		time.Sleep(time.Minute)
		if e, no = admit(limits, 10_000); no != nil {
			t.Fatalf("more than a full bucket holds: %+v", no)
		}
		e.Done(time.Now(), 100)
		if e, no = admit(limits, 500); no != nil {
			t.Errorf("what was given back is not there: %+v", no)
		}
	})
}

func TestConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, admit := alone(t)
		limits := Limits{Requests: 3, Concurrent: 2}
		a, _ := admit(limits, 0)
		b, _ := admit(limits, 0)
		for range 10 {
			if _, no := admit(limits, 0); no == nil || no.Limit != Concurrent || no.Max != 2 || no.After != busyAfter {
				t.Fatalf("got %+v; want a refusal of the third", no)
			}
		}
		a.Done(time.Now(), 0)
		a.Done(time.Now(), 0) // nothing
		if _, no := admit(limits, 0); no != nil {
			t.Fatalf("refusals were charged, or a slot did not come free: %+v", no)
		}
		if _, no := admit(limits, 0); no == nil || no.Limit != Concurrent {
			t.Errorf("ending a request twice gave two slots: %+v", no)
		}
		if _, no := l.Admit(time.Now(), "b", limits, 0); no != nil {
			t.Errorf("another tenant: %+v", no)
		}
		b.Done(time.Now(), 0)
		if got := l.Stats(); got.Tenants != 2 || got.Refused["concurrent"] != 11 || got.Refused["requests"] != 0 {
			t.Errorf("got %+v; want two tenants and 11 refusals", got)
		}
		var none Lease
		none.Done(time.Now(), 5)
		if e, no := admit(Limits{}, 1<<40); no != nil || e != (Lease{}) {
			t.Errorf("without limits: %+v, %+v", e, no)
		}
	})
}

// TestLimitsMayChange changes a tenant's limits between two requests: what is used up stays used up, in proportion.
func TestLimitsMayChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, admit := alone(t)
		for range 5 {
			if _, no := admit(Limits{Requests: 10}, 0); no != nil {
				t.Fatal(no)
			}
		}
		if e, no := admit(Limits{Requests: 20}, 0); no != nil || e.Requests.Left != 9 {
			t.Errorf("raised: got %+v, %+v; want half of it, less one", e.Requests, no)
		}
		if e, no := admit(Limits{Requests: 5}, 0); no != nil || e.Requests.Left != 1 {
			t.Errorf("lowered: got %+v, %+v; want 1 left", e.Requests, no)
		}
		if e, no := admit(Limits{Tokens: 5}, 5); no != nil || e.Tokens.Left != 0 || e.Requests != (Room{}) {
			t.Errorf("another limit: got %+v, %+v", e, no)
		}
		if got := l.Stats().Tenants; got != 1 {
			t.Errorf("%d tenants; want 1", got)
		}
	})
}

func TestTenantsAreForgotten(t *testing.T) {
	for name, shared := range map[string]*fakeExchange{"alone": nil, "shared": newFakeExchange(time.Millisecond), "down": {down: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(nil, quiet())
				if shared != nil {
					l.shared = shared
				}
				l.most = 1
				run(t, l)
				limits := Limits{Requests: 60, Concurrent: 1000}
				held := []Lease{}
				full := 0
				for i := range 1000 {
					e, no := l.Admit(time.Now(), fmt.Sprint(i), limits, 0)
					if no == nil {
						held = append(held, e)
					} else if no.Limit != Tenants || no.Max != shards || no.After <= 0 {
						t.Fatalf("got %+v; want no room for tenants", no)
					} else {
						full++
					}
				}
				if len(held) > shards || full == 0 || l.Stats().Tenants != len(held) {
					t.Errorf("%d tenants are counted, %d refused; want at most %d", len(held), full, shards)
				}
				time.Sleep(time.Minute)
				if got := l.Stats().Tenants; got != len(held) {
					t.Errorf("%d of %d tenants are left with their requests under way", got, len(held))
				}
				for i := range held {
					held[i].Done(time.Now(), 0)
				}
				time.Sleep(10 * time.Second)
				if got := l.Stats().Tenants; got != 0 {
					t.Errorf("%d tenants are left", got)
				}
				for i := range l.shards {
					s := &l.shards[i]
					s.mu.Lock()
					if n := len(s.dirty); n != 0 {
						t.Errorf("shard %d has %d to tell", i, n)
					}
					s.mu.Unlock()
				}
			})
		})
	}
}

// run runs a limiter until the test ends, in the bubble.
func run(t *testing.T, l *Limiter) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { _ = l.Run(ctx); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })
}

func TestAdmitDoesNotAllocate(t *testing.T) {
	l := newLimiter(nil, quiet())
	limits := Limits{Requests: 1 << 30, Tokens: 1 << 40, Concurrent: 10}
	now := time.Now()
	warm, _ := l.Admit(now, "tenant", limits, 1)
	warm.Done(now, 1)
	if n := testing.AllocsPerRun(1000, func() {
		e, no := l.Admit(now, "tenant", limits, 100)
		if no != nil {
			t.Fatal(no)
		}
		e.Done(now, 90)
	}); n != 0 {
		t.Errorf("%g allocations per request; want 0", n)
	}
}

// BenchmarkAdmit is what limits add to a request: one Admit and one Done.
func BenchmarkAdmit(b *testing.B) {
	limits := Limits{Requests: 1 << 30, Tokens: 1 << 40, Concurrent: 1000}
	for _, tenants := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) {
			l := newLimiter(nil, quiet())
			names := make([]string, tenants)
			for i := range names {
				names[i] = fmt.Sprintf("https://issuer.example|tenant-%d", i)
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					now := time.Now()
					e, no := l.Admit(now, names[i%tenants], limits, 100)
					if no != nil {
						b.Fatal(no)
					}
					e.Done(now, 90)
				}
			})
		})
	}
}
