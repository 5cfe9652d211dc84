//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// load is requests whose answers one engine alone has given.
type load struct {
	prompts []string
	want    map[string]string
}

func newLoad(t *testing.T, alone string) *load {
	l := &load{want: map[string]string{}}
	common := strings.Repeat("they all begin alike, ", 20)
	for i := range 8 {
		p := fmt.Sprintf("%sbut request %d goes on by itself", common, i)
		if i%2 == 0 {
			p = fmt.Sprintf("request %d is like no other: %s", i, strings.Repeat(strconv.Itoa(i*7919)+" ", 60))
		}
		status, got := complete(t.Context(), alone, p, 12, false)
		if status != http.StatusOK || got == "" {
			t.Fatalf("status %d, %q", status, got)
		}
		l.prompts = append(l.prompts, p)
		l.want[p] = got
	}
	return l
}

// complete asks for a completion and returns its text; status is 0 if there was no answer, or only a part of one.
func complete(ctx context.Context, url, prompt string, n int, stream bool) (status int, text string) {
	body, _ := json.Marshal(map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": n, "temperature": 0, "stream": stream})
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	q.Header.Set("Content-Type", "application/json")
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, err.Error()
	}
	defer a.Body.Close()
	said, err := io.ReadAll(a.Body)
	if err != nil {
		return 0, err.Error()
	}
	parts := [][]byte{said}
	if stream {
		parts = nil
		for _, e := range strings.Split(string(said), "\n\n") {
			if d, ok := strings.CutPrefix(e, "data: "); ok && d != "[DONE]" {
				parts = append(parts, []byte(d))
			}
		}
		if !bytes.Contains(said, []byte("data: [DONE]")) {
			return 0, string(said)
		}
	}
	for _, p := range parts {
		var c struct {
			Choices []struct{ Text string }
			Error   any
		}
		if err := json.Unmarshal(p, &c); err != nil || c.Error != nil {
			return a.StatusCode, string(said)
		}
		for _, one := range c.Choices {
			text += one.Text
		}
	}
	return a.StatusCode, text
}

// run asks the load's requests, eight at a time, until stop is called, which returns how many were asked. Every answer must
// be what one engine gives.
func (l *load) run(t *testing.T, url string) (stop func() int) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	n := 0
	for i, p := range l.prompts {
		wg.Go(func() {
			for round := i; ctx.Err() == nil; round++ {
				status, got := complete(context.WithoutCancel(ctx), url, p, 12, round%2 == 0)
				mu.Lock()
				n++
				mu.Unlock()
				if status != http.StatusOK || got != l.want[p] {
					t.Errorf("request beside the others: status %d, %q; want %q", status, got, l.want[p])
					return
				}
			}
		})
	}
	return func() int { cancel(); wg.Wait(); return n }
}

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
			stop = l.run(t, g.url)
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
		until(t, 20*time.Second, "both engines' blocks are free again", func() bool { return unused(t, prefill) && unused(t, decode) })
		t.Logf("seed %d: free %.1f s after the last request; %d have left, %d were served whole, %d beside them", seed, time.Since(began).Seconds(), left, whole, beside)
	}
	for _, e := range []engine{prefill, decode} {
		if n := must(t, scrape(t, e.url), "vllm:nixl_num_kv_expired_reqs_total"); n != 0 {
			t.Errorf("%s: %v leases have run out", e.name, n)
		}
	}
	g.tell(t)
	until(t, time.Minute, "the gateway says of no block that it is held", func() bool { return g.counter(t, "pdrouter_stranded_blocks") == 0 })
	return n
}

// tell logs what the gateway says that came free, and what did not.
func (g gateway) tell(t *testing.T) {
	body, err := read(t.Context(), g.operations+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(body), "\n") {
		if strings.HasPrefix(line, "pdrouter_reclaims") || strings.HasPrefix(line, "pdrouter_stranded") {
			t.Log(line)
		}
	}
}
