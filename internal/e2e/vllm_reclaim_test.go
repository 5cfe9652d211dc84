//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// leaves has clients leave at random moments, half of them while other requests run, and checks that nothing stays held. It
// returns how many were to leave.
func (g gateway) leaves(t *testing.T, l *load, prefill, decode engine) (n int) {
	n = 20
	if s := os.Getenv("N"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	const seed = 6
	rng := rand.New(rand.NewPCG(seed, 0))
	left, whole, beside := 0, 0, 0
	for half := range 2 {
		stop := func() int { return 0 }
		if half == 1 {
			stop = l.run(t, g.url, nil)
		}
		for i := range n / 2 {
			prompt := fmt.Sprintf("%d client %d leaves: %s", half, i, strings.Repeat("a long way to go ", 20+rng.IntN(60)))
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(700))*time.Millisecond)
			if status, _ := complete(ctx, g.url, prompt, 40, i%2 == 0); status == 0 {
				left++
			} else {
				whole++
			}
			cancel()
		}
		beside += stop()
		began := time.Now()
		// The aim is 5 s, and the log tells; a busy machine is slower, and what leaks never comes free.
		until(t, slow, "both engines' blocks are free again", func() bool { return unused(t, prefill) && unused(t, decode) })
		t.Logf("seed %d: free %.1f s after the last request; %d have left, %d were served whole, %d beside them", seed, time.Since(began).Seconds(), left, whole, beside)
	}
	if n, told := must(t, scrape(t, prefill.url), "vllm:nixl_num_kv_expired_reqs_total"), g.told(t); n > float64(told) {
		t.Errorf("%v leases have run out; want %d at most, as often as decode was told", n, told)
	}
	g.tell(t)
	until(t, slow, "the gateway says of no block that it is held, or may be", func() bool {
		return g.counter(t, "pdrouter_leaked_kv_blocks") == 0 && g.counter(t, "pdrouter_unresolved_kv_blocks") == 0
	})
	return n
}

// told is how often decode was told that what it waits for has come. Where prefill lives that is as often as its lease had ended first.
func (g gateway) told(t *testing.T) int {
	t.Helper()
	n, _ := scrape(t, g.operations).sum("pdrouter_reclaims_total", `by="notify_decode"`)
	return int(n)
}

// tell logs what the gateway says that came free, and what did not.
func (g gateway) tell(t *testing.T) {
	body, err := read(t.Context(), g.operations+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(body), "\n") {
		if strings.HasPrefix(line, "pdrouter_reclaims") || strings.HasPrefix(line, "pdrouter_leaked") || strings.HasPrefix(line, "pdrouter_unresolved") {
			t.Log(line)
		}
	}
}
