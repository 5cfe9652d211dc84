package main

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pdrouter/internal/demo"
	"pdrouter/internal/proc"
)

// soakFor is the environment variable with how long TestSoak runs; without it the test is skipped. make soak sets it.
const soakFor = "PDROUTER_SOAK"

// TestSoak has clients ask for a long time, leave when it suits them and read slowly, while engines are killed with signal
// 9 and started again, and the gateway reads a changed configuration again and again. No answer may be wrong or silently
// cut; in the end every block is free, and the gateway's memory, goroutines and descriptors are what they were.
func TestSoak(t *testing.T) {
	d := soakTime(t)
	ctx, cancel := context.WithTimeout(t.Context(), d+10*time.Minute)
	defer cancel()
	f, err := demo.StartFleet(ctx, t.TempDir(), "tcp")
	if err != nil {
		t.Fatalf("%v\n%v\n%v", err, f.Stop(), f.Tail())
	}
	s := &soak{t: t, Fleet: f, asks: demo.Asks(), ends: map[string]int{}}
	t.Cleanup(s.stop)
	for _, ask := range s.asks {
		a, err := demo.Send(ctx, s.Alone, ask)
		if err != nil {
			t.Fatal(err)
		}
		s.want = append(s.want, a.Text)
	}
	s.run(ctx, d, s.load)
}

// soakTime is how long a soak runs, from the environment. Without it the test is skipped.
func soakTime(t *testing.T) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(os.Getenv(soakFor))
	if err != nil {
		t.Skipf("takes minutes: make soak, or set %s to a duration such as 10m", soakFor)
	}
	return d
}

// run has a load without trouble for a while and then with trouble for d, and judges what is there in the end.
func (s *soak) run(ctx context.Context, d time.Duration, load func(ctx context.Context, d time.Duration, trouble bool)) {
	load(ctx, 10*time.Second, false) // what a first use allocates is not what is measured
	before := s.atRest(ctx)
	load(ctx, d, true)
	if err := s.Wait(ctx); err != nil {
		s.t.Error(err)
	}
	if err := s.Settled(ctx); err != nil {
		s.t.Error(err)
	}
	s.judge(before, s.atRest(ctx))
}

// stop ends all processes. It prints what the gateway has warned of if the test has failed.
func (s *soak) stop() {
	if s.t.Failed() {
		for line := range strings.Lines(s.process("gateway").Tail(2000)) {
			if !strings.Contains(line, "msg=request ") && !strings.Contains(line, "level=INFO") {
				s.t.Log(strings.TrimSpace(line))
			}
		}
	}
	for _, p := range s.Processes {
		_ = p.Stop(30 * time.Second)
	}
}

// soak is one run.
type soak struct {
	t *testing.T
	*demo.Fleet
	asks []demo.Ask
	want []string

	mu     sync.Mutex
	ends   map[string]int // how requests ended
	kills  int
	reads  int // of a changed configuration
	memory []float64
}

func (s *soak) ended(how string) {
	s.mu.Lock()
	s.ends[how]++
	s.mu.Unlock()
}

// process returns the one of that name.
func (s *soak) process(name string) *proc.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.Processes {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// load has clients ask until d is over, and with trouble everything else that may happen.
func (s *soak) load(ctx context.Context, d time.Duration, trouble bool) {
	ctx, stop := context.WithTimeout(ctx, d)
	defer stop()
	var wg sync.WaitGroup
	for c := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(c), 1))
			for ctx.Err() == nil {
				s.ask(ctx, rnd, trouble)
			}
		})
	}
	if trouble {
		wg.Go(func() { s.kill(ctx) })
		wg.Go(func() { s.reread(ctx) })
		wg.Go(func() { s.watch(ctx, d) })
	}
	wg.Wait()
}

// ask asks once, in one of the ways clients have.
func (s *soak) ask(ctx context.Context, rnd *rand.Rand, trouble bool) {
	i := rnd.IntN(len(s.asks))
	own, leave := context.WithCancel(context.WithoutCancel(ctx)) // the last ones are answered, too
	defer leave()
	leaves := trouble && rnd.IntN(5) == 0
	if leaves {
		defer time.AfterFunc(time.Duration(rnd.IntN(60))*time.Millisecond, leave).Stop()
	}
	got, err := demo.Send(own, s.Client, s.asks[i])
	switch {
	case err == nil && got.Text != s.want[i]:
		s.ended("wrong")
		s.t.Errorf("request %s: %q; want %q", got.ID, got.Text, s.want[i])
	case err == nil:
		s.ended("whole and right")
	case leaves && own.Err() != nil:
		s.ended("the client left")
	case errors.Is(err, io.ErrUnexpectedEOF) && !cutOff(err):
		s.ended("silently cut")
		s.t.Errorf("request %s ended cleanly without its terminal event", got.ID)
	case trouble:
		s.ended("error: " + clipped(err.Error()))
	default:
		s.t.Errorf("without trouble: %v", err)
	}
}

// cutOff reports whether the connection itself broke, which clients notice.
func cutOff(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || strings.Contains(err.Error(), "EOF reading trailer")
}

// clipped makes errors of one kind alike.
func clipped(text string) string {
	if i := strings.Index(text, "127.0.0.1"); i >= 0 {
		text = text[:i] + "…"
	}
	return text[:min(len(text), 90)]
}

// kill kills an engine every few seconds, and starts it anew.
func (s *soak) kill(ctx context.Context) {
	rnd := rand.New(rand.NewPCG(7, 7))
	for pause(ctx, 4*time.Second+time.Duration(rnd.IntN(4000))*time.Millisecond) {
		p := s.process(s.Engines[rnd.IntN(len(s.Engines))].Name)
		_ = p.Cmd.Process.Kill()
		<-p.Done
		time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
		next, err := proc.Start(s.Dir, p.Name, p.Cmd.Args[1:]...)
		if err != nil {
			s.t.Error(err)
			return
		}
		s.mu.Lock()
		s.Processes[slices.Index(s.Processes, p)] = next
		s.kills++
		s.mu.Unlock()
	}
}

// reread changes the configuration every few seconds: a limit, a policy, an engine that takes no more requests.
func (s *soak) reread(ctx context.Context) {
	path := s.Path("pdrouter.yaml")
	first, err := os.ReadFile(path)
	if err != nil {
		s.t.Error(err)
		return
	}
	changes := []func(string) string{
		func(c string) string { return strings.Replace(c, "round_robin", "least_load", 2) },
		func(c string) string { return c + "limits: {body: 1048576, n: 4}\n" },
		func(c string) string {
			return strings.Replace(c, "{name: prefill-0,", "{name: prefill-0, drain: true,", 1)
		},
		func(c string) string { return c + "models: broken\n" }, // changes nothing
		func(c string) string { return c },
	}
	for i := 0; pause(ctx, 3*time.Second); i++ {
		if err := os.WriteFile(path, []byte(changes[i%len(changes)](string(first))), 0o600); err != nil {
			s.t.Error(err)
			return
		}
		_ = s.process("gateway").Cmd.Process.Signal(syscall.SIGHUP)
		s.mu.Lock()
		s.reads++
		s.mu.Unlock()
	}
	if err := os.WriteFile(path, first, 0o600); err != nil {
		s.t.Error(err)
	}
	_ = s.process("gateway").Cmd.Process.Signal(syscall.SIGHUP)
}

// watch notes the gateway's memory, and prints now and then how it goes.
func (s *soak) watch(ctx context.Context, d time.Duration) {
	begun := time.Now()
	for i := 1; pause(ctx, time.Second); i++ {
		resident, _ := s.sizes()
		s.mu.Lock()
		s.memory = append(s.memory, resident)
		if i%30 == 0 {
			s.t.Logf("%5s of %s: %d whole, %d left, %d kills, %d changes, %.0f MiB", time.Since(begun).Round(time.Second), d,
				s.ends["whole and right"], s.ends["the client left"], s.kills, s.reads, resident)
		}
		s.mu.Unlock()
	}
}

// pause waits, and reports false once ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
