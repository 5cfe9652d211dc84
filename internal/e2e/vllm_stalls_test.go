//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// stalledFor is how long an engine is stopped: longer than the lease of prefill, which is 30 s.
const stalledFor = 36 * time.Second

// stalls stops the engine core and the workers of one engine for longer than the lease of prefill, while 8 requests are under
// way. Half of their clients leave meanwhile. The others must get the right answer. The KV blocks of all must come free on
// both engines within 10 s of the end of the last leg, and no answer may be wrong, neither beside nor afterwards.
func (g gateway) stalls(t *testing.T, l *load, stopped, prefill, decode engine) {
	t.Helper()
	const n = 8
	prompts, want := make([]string, n), make([]string, n)
	for i := range prompts {
		prompts[i] = fmt.Sprintf("%s stalls, request %d: %s", stopped.name, i, strings.Repeat(strconv.Itoa((i+3)*7907)+" ", 60))
		status, text := complete(t.Context(), prefill.url, prompts[i], 12, false)
		if status != http.StatusOK {
			t.Fatalf("status %d, %q", status, text)
		}
		want[i] = text
	}
	pids := stopped.inner(t)
	signal := func(s syscall.Signal) {
		for _, pid := range pids {
			_ = syscall.Kill(pid, s)
		}
	}
	t.Cleanup(func() { signal(syscall.SIGCONT) })
	var served, left sync.WaitGroup
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for i := range n {
		if i%2 == 0 {
			left.Go(func() { complete(ctx, g.url, prompts[i], 12, i%4 == 0) })
			continue
		}
		served.Go(func() {
			if status, text := complete(t.Context(), g.url, prompts[i], 12, i%4 == 1); status != http.StatusOK || text != want[i] {
				t.Errorf("request %d, whose client waited: status %d, %q; want %q", i, status, text, want[i])
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	signal(syscall.SIGSTOP)
	began := time.Now()
	time.Sleep(stalledFor / 3)
	leave()
	left.Wait()
	time.Sleep(time.Until(began.Add(stalledFor)))
	signal(syscall.SIGCONT)
	resumed := time.Now()
	stop := l.run(t, g.url, nil)
	served.Wait()
	t.Logf("the last client had its answer %.1f s after the engine went on", time.Since(resumed).Seconds())
	beside := stop()
	until(t, 3*time.Minute, "no leg is open", func() bool { return idle(t, prefill) && idle(t, decode) })
	ended := time.Now()
	until(t, 10*time.Second, "the blocks of both engines are free again", func() bool { return unused(t, prefill) && unused(t, decode) })
	t.Logf("the last leg ended %.1f s after the engine went on, all blocks were free %.1f s after that; %d requests beside them; %v leases expired",
		ended.Sub(resumed).Seconds(), time.Since(ended).Seconds(), beside, must(t, scrape(t, prefill.url), "vllm:nixl_num_kv_expired_reqs_total"))
	g.tell(t)
	for i, p := range prompts { // what was given back is no wrong prefix
		for _, url := range []string{g.url, decode.url} {
			if status, text := complete(t.Context(), url, p, 12, false); status != http.StatusOK || text != want[i] {
				t.Errorf("request %d, asked again: status %d, %q; want %q", i, status, text, want[i])
			}
		}
	}
}

// idle reports whether the engine has no request in hand.
func idle(t *testing.T, e engine) bool {
	t.Helper()
	c := scrape(t, e.url)
	return must(t, c, "vllm:num_requests_running") == 0 && must(t, c, "vllm:num_requests_waiting") == 0
}
