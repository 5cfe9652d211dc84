package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pdrouter/internal/demo"
	"pdrouter/internal/talktest"
)

// TestSoakConversations is TestSoak for conversations that move: three engines of either role drain one after the other, and are killed with signal 9, while
// conversations go on in the ways that clients have. Each answer is compared with that of an engine apart.
func TestSoakConversations(t *testing.T) {
	d := soakTime(t)
	ctx, cancel := context.WithTimeout(t.Context(), d+10*time.Minute)
	defer cancel()
	f, err := demo.StartFleetOf(ctx, t.TempDir(), "tcp", []demo.Engine{{Name: "engine-0", Role: "both", TP: 1}, {Name: "engine-1", Role: "both", TP: 1}, {Name: "engine-2", Role: "both", TP: 1}})
	if err != nil {
		t.Fatalf("%v\n%v\n%v", err, f.Stop(), f.Tail())
	}
	s := &soak{t: t, Fleet: f, ends: map[string]int{}}
	t.Cleanup(s.stop)
	s.run(ctx, d, s.converse)
	moved, err := s.Gauge(ctx, s.Operations+"/metrics", `pdrouter_migrations_total{reason="drain",result="moved"}`)
	if t.Logf("%.0f conversations were moved", moved); err != nil || moved < 10 {
		t.Errorf("%.0f conversations were moved, %v; want 10 at least", moved, err)
	}
}

// converse has clients talk until d is over, and with trouble engines drain and end.
func (s *soak) converse(ctx context.Context, d time.Duration, trouble bool) {
	ctx, stop := context.WithTimeout(ctx, d)
	defer stop()
	var wg sync.WaitGroup
	for c := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(c), 23))
			walk := talktest.Walk{Rand: rng, Talks: 1 << 30, Open: 6}
			for ctx.Err() == nil {
				s.turn(ctx, walk.Next(), fmt.Sprint("client ", c, " "), rng.IntN(2) == 0)
			}
		})
	}
	wg.Go(func() { s.drainInTurn(ctx) })
	if trouble {
		wg.Go(func() { s.kill(ctx) })
		wg.Go(func() { s.watch(ctx, d) })
	}
	wg.Wait()
}

// turn has a conversation answered by the gateway and by the engine apart.
func (s *soak) turn(ctx context.Context, c *talktest.Talk, client string, stream bool) {
	own := context.WithoutCancel(ctx) // the last ones are answered, too
	want, err := demo.Send(own, s.Alone, demo.ChatOf(c.Messages, c.Salt, "", 12, false))
	if err != nil {
		s.t.Error(err)
		return
	}
	got, err := demo.Send(own, s.Client, demo.ChatOf(c.Messages, c.Salt, client+c.Name, 12, stream))
	switch {
	case err == nil && got.Text != want.Text:
		s.ended("wrong")
		s.t.Errorf("request %s: %q; want %q: %v", got.ID, got.Text, want.Text, c.Messages)
	case err == nil:
		s.ended("whole and right")
	default:
		s.ended("error: " + clipped(err.Error()))
	}
	c.Answered(want.Text)
}

// drainInTurn drains each engine for a while, one after the other, so that its conversations move to the others.
func (s *soak) drainInTurn(ctx context.Context) {
	path := s.Path("pdrouter.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		s.t.Error(err)
		return
	}
	moving := string(text)
	if !strings.Contains(moving, "migration:") {
		moving = strings.Replace(moving, "decode: round_robin", "decode: session", 1) + "migration: {mode: enabled, min_tokens: 16, memory: 2MiB}\n"
	}
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			s.t.Error(err)
		}
		_ = s.process("gateway").Cmd.Process.Signal(syscall.SIGHUP)
		s.mu.Lock()
		s.reads++
		s.mu.Unlock()
	}
	write(moving)
	for i := 0; pause(ctx, 3*time.Second); i++ {
		if name := s.Engines[i%len(s.Engines)].Name; i%2 == 0 {
			write(strings.Replace(moving, "{name: "+name+",", "{name: "+name+", drain: true,", 1))
		} else {
			write(moving)
		}
	}
	write(moving)
}
