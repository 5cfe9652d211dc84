//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// leaves has clients leave at random moments while other requests run, and checks what they were told until then, and that nothing
// stays held.
func (w *plane) leaves(t *testing.T, l *load) {
	t.Helper()
	n := 20
	if s := os.Getenv("N"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	const seed, tokens = 8, 300
	rng := rand.New(rand.NewPCG(seed, 0))
	told := map[string]answer{}
	left := 0
	stop := l.run(t, w.front.url, nil)
	for i := range n {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(1500))*time.Millisecond)
		prompt := fmt.Sprintf("client %d leaves: %s", i, strings.Repeat("a long way to go ", 20+rng.IntN(60)))
		got := say(ctx, w.front.url, prompt, tokens, i%2 == 0)
		if got.err != "" && ctx.Err() == nil {
			t.Errorf("status %d, %s", got.status, got.err)
		}
		cancel()
		if got.err != "" {
			left++
		}
		if got.text != "" {
			told[prompt] = got
		}
	}
	beside := stop()
	began := time.Now()
	w.rests(t)
	free := time.Since(began)
	var wg sync.WaitGroup
	at := make(chan struct{}, 8)
	for prompt, got := range told {
		at <- struct{}{}
		wg.Go(func() {
			defer func() { <-at }()
			// Without params of a hand-off an engine of the plane computes alone.
			status, want := complete(t.Context(), w.prefill[0].url, prompt, tokens, false)
			if status != http.StatusOK || got.err == "" && got.text != want || !strings.HasPrefix(want, got.text) {
				t.Errorf("a client that was to leave was told %.300q (%s); one engine says %d, %.300q", got.text, got.err, status, want)
			}
		})
	}
	wg.Wait()
	t.Logf("seed %d: %d of %d have left, %d had some text, %d requests beside them; free %.1f s after the last", seed, left, n, len(told), beside, free.Seconds())
	if left < n/2 {
		t.Errorf("%d of %d have left; want most", left, n)
	}
	w.quiet(t, w.all()...)
	w.tell(t, w.all()...)
}

// holds has decode stand still while prefill holds blocks for it, logs what prefill uses of the CPU meanwhile, and checks that the
// request ends well when decode goes on.
func (w *plane) holds(t *testing.T, l *load) {
	t.Helper()
	prefill, decode := w.prefill[0], w.decode[0]
	stand := func(sig syscall.Signal) { _ = syscall.Kill(-decode.cmd.Process.Pid, sig) }
	defer stand(syscall.SIGCONT)
	stand(syscall.SIGSTOP)
	got := make(chan answer, 1)
	go func() { got <- say(t.Context(), w.front.url, l.prompts[0], 12, true) }()
	until(t, time.Minute, "prefill holds blocks", func() bool { return len(prefill.series(t, "pdrouter_plane_held_blocks")) > 0 })
	before, began := prefill.used(t), time.Now()
	time.Sleep(3 * time.Second)
	share := (prefill.used(t) - before).Seconds() / time.Since(began).Seconds()
	held := prefill.series(t, "pdrouter_plane_held_blocks")
	stand(syscall.SIGCONT)
	if a := <-got; a.status != http.StatusOK || a.err != "" || a.text != l.want[l.prompts[0]] {
		t.Errorf("status %d, %q, %s; want %q", a.status, a.text, a.err, l.want[l.prompts[0]])
	}
	t.Logf("while it held %q prefill used %.2f of a core", held, share)
	w.rests(t)
}

// prefillDies kills a prefill engine while decode engines wait for it and other requests run, and starts it again.
func (w *plane) prefillDies(t *testing.T, l *load) {
	t.Helper()
	victim, others := w.prefill[0], slices.Concat(w.prefill[1:], w.decode)
	of := func(name string) string { return fmt.Sprintf("engine=%q", name) }
	inFlight := func() float64 {
		n, _ := scrape(t, w.front.operations).sum("pdrouter_engine_requests_in_flight", of(victim.name))
		return n
	}
	again := map[string]string{}
	for _, p := range l.prompts {
		status, want := complete(t.Context(), victim.url, p+" again", 12, false)
		if status != http.StatusOK {
			t.Fatalf("status %d, %s", status, want)
		}
		again[p+" again"] = want
	}
	stop := l.run(t, w.front.url, nil)
	_ = syscall.Kill(-victim.cmd.Process.Pid, syscall.SIGSTOP)
	var staying sync.WaitGroup
	for p, want := range again {
		staying.Go(func() {
			if status, got := complete(t.Context(), w.front.url, p, 12, false); status != http.StatusOK || got != want {
				t.Errorf("prefill died: status %d, %q; want %q", status, got, want)
			}
		})
	}
	done := func() float64 { return came(t, w.prefill[1:], "pdrouter_plane_transfers_total") }
	before := done()
	until(t, time.Minute, "decode waits for prefill, and the other prefill goes on", func() bool {
		return inFlight() >= 4 && came(t, w.decode, "vllm:num_requests_waiting") > 0 && done() >= before+8
	})
	n := inFlight()
	victim.kill()
	staying.Wait()
	began := time.Now()
	asked := stop()
	until(t, 30*time.Second, "all other engines' blocks are free again", func() bool {
		return !slices.ContainsFunc(others, func(m *member) bool { return !unused(t, m.engine) })
	})
	t.Logf("%v requests were with prefill as it died, %d were beside them; free %.1f s after the last one", n, asked, time.Since(began).Seconds())
	w.quiet(t, others...)
	w.tell(t, others...)
	for _, p := range l.prompts { // what was given back is no wrong prefix to anybody
		if status, got := complete(t.Context(), w.front.url, p, 12, false); status != http.StatusOK || got != l.want[p] {
			t.Errorf("afterwards: status %d, %q; want %q", status, got, l.want[p])
		}
	}
	w.again(t, l, victim)
}

// stalls has a prefill engine stand still while clients leave and other requests run, looks for what decode keeps in quarantine, and
// has it go on.
func (w *plane) stalls(t *testing.T, l *load) {
	t.Helper()
	victim := w.prefill[0]
	stop := l.run(t, w.front.url, nil)
	_ = syscall.Kill(-victim.cmd.Process.Pid, syscall.SIGSTOP)
	ctx, leave := context.WithTimeout(t.Context(), 3*time.Second)
	defer leave()
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() { complete(ctx, w.front.url, fmt.Sprintf("%d is a client that has not much time", i), 12, true) })
	}
	kept := map[string]bool{}
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, m := range w.decode {
			for _, line := range m.series(t, "pdrouter_plane_quarantined_blocks") {
				kept[line] = true
			}
		}
	}
	wg.Wait()
	_ = syscall.Kill(-victim.cmd.Process.Pid, syscall.SIGCONT)
	asked := stop()
	began := time.Now()
	w.rests(t)
	t.Logf("%d requests beside the clients that left; free %.1f s after the last one; %d series of what was in quarantine", asked, time.Since(began).Seconds(), len(kept))
	for line := range kept { // over tcp decode is sure within about a second that nothing comes any more: it may be over too soon to be seen
		if !strings.Contains(line, victim.name) || !strings.Contains(line, `reason="`) || strings.Contains(line, `reason=""`) {
			t.Errorf("in quarantine: %s; want the peer and a reason", line)
		}
		t.Logf("in quarantine: %s", line)
	}
	w.quiet(t, w.all()...)
}

// decodeDies kills a decode engine in the middle of a stream while other requests run, and starts it again.
func (w *plane) decodeDies(t *testing.T, l *load, tale string) {
	t.Helper()
	victim, others := w.decode[0], slices.Concat(w.prefill, w.decode[1:])
	s := begin(t, w.front.url, tale)
	for try := 0; s.decode != victim.name; try++ {
		if try == 20 {
			t.Fatalf("the policy chose %q twenty times", s.decode)
		}
		s.leave()
		s = begin(t, w.front.url, tale)
	}
	var mu sync.Mutex
	var ends []string
	stop := l.run(t, w.front.url, func(_, err string) {
		mu.Lock()
		defer mu.Unlock()
		ends = append(ends, err)
	})
	before := came(t, w.decode[1:], "pdrouter_plane_transfers_total")
	until(t, time.Minute, "the other decode serves too", func() bool { return came(t, w.decode[1:], "pdrouter_plane_transfers_total") >= before+8 })
	decodeDies(t, victim.engine, s)
	before = came(t, w.decode[1:], "pdrouter_plane_transfers_total")
	until(t, time.Minute, "the other decode goes on", func() bool { return came(t, w.decode[1:], "pdrouter_plane_transfers_total") >= before+8 })
	asked := stop()
	began := time.Now()
	until(t, 30*time.Second, "all other engines' blocks are free again", func() bool {
		return !slices.ContainsFunc(others, func(m *member) bool { return !unused(t, m.engine) })
	})
	t.Logf("%d requests beside the stream, %d of them ended with decode: %.300q; free %.1f s after the last one", asked, len(ends), ends, time.Since(began).Seconds())
	if len(ends) > len(l.prompts) { // each of those that ask has one at a time
		t.Errorf("%d requests have ended with decode; want %d at most", len(ends), len(l.prompts))
	}
	w.quiet(t, others...)
	w.tell(t, others...)
	w.again(t, l, victim)
}

// again starts a killed engine again, while a request now and then is asked. None fails, and in the end the engine has its part.
func (w *plane) again(t *testing.T, l *load, victim *member) {
	t.Helper()
	w.start(t, victim)
	asked := 0
	part := func(m *member) float64 { return came(t, []*member{m}, "pdrouter_plane_transfers_total") }
	until(t, 2*started, "the engine that was started again has its part", func() bool {
		p := l.prompts[asked%len(l.prompts)]
		if status, got := complete(t.Context(), w.front.url, p, 12, asked%2 == 0); status != http.StatusOK || got != l.want[p] {
			t.Errorf("with the new run: status %d, %q; want %q", status, got, l.want[p])
		}
		asked++
		return w.healthy(t, victim) && part(victim) > 0
	})
	stop := l.run(t, w.front.url, nil)
	before := part(victim)
	until(t, time.Minute, "the engine that was started again serves beside the others", func() bool { return part(victim) >= before+8 })
	t.Logf("%d requests while it started, %d with it", asked, stop())
	w.rests(t)
	w.quiet(t, w.all()...)
}
