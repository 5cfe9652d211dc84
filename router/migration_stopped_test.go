package router_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/refengine"
	"pdrouter/policies"
	"pdrouter/router/config"
	"pdrouter/router/migration"
)

// stoppable is an engine behind an address of its own, which can be stopped as by SIGSTOP: connections are taken, and nothing is read or answered.
type stoppable struct {
	t       *testing.T
	name    string
	stopped sync.RWMutex // locked while it is
}

// front returns the engine's address, and that of others as it is.
func (s *stoppable) front(name, engine string) string {
	if name != s.name {
		return engine
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			go s.serve(in, engine) // until the gateway or the engine closes
		}
	}()
	return ln.Addr().String()
}

func (s *stoppable) serve(in net.Conn, engine string) {
	defer in.Close()
	s.stopped.RLock()
	out, err := net.Dial("tcp", engine)
	s.stopped.RUnlock()
	if err != nil {
		return
	}
	defer out.Close()
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(gate{in, &s.stopped}, out)
		_ = in.Close()
	}()
	_, _ = io.Copy(gate{out, &s.stopped}, in)
	_ = out.Close()
	<-back
}

// gate is a writer that waits while its engine is stopped.
type gate struct {
	io.Writer
	stopped *sync.RWMutex
}

func (g gate) Write(b []byte) (int, error) {
	g.stopped.RLock()
	defer g.stopped.RUnlock()
	return g.Writer.Write(b)
}

// byMoveThen is byMove that takes one engine, where it may, for what is not moved.
type byMoveThen struct {
	byMove
	name *atomic.Value // a string
}

func (p byMoveThen) Choose(q policies.Request, f policies.Fleet, d policies.Draw) policies.Choice {
	c := p.byMove.Choose(q, f, d)
	for i, e := range f.Decode {
		if c.Move == 0 && e.Usable && e.Name == p.name.Load() {
			c.Decode = i
		}
	}
	return c
}

// TestFault74MovesOfStoppedEngines stops, before the next turn, the engine that has the conversation, or the one that it is to be moved to. The request
// waits as long as the move may take. Then the other engine serves it, although the policy would choose the stopped one.
func TestFault74MovesOfStoppedEngines(t *testing.T) {
	for stopped, other := range map[string]string{holder: idle, idle: holder} {
		t.Run(stopped, func(t *testing.T) {
			s, next := &stoppable{t: t, name: stopped}, new(atomic.Value)
			planner := byMoveThen{byMove{planned(t, "default: {policy: cost}"), 300 * time.Millisecond}, next}
			m := newMoversBy(t, planner, 2, func(c *config.Config, engines map[string]*refengine.Config) {
				engines[holder].Lease, c.Migration.TokensPerSecond = 2*time.Second, 1<<30
			})
			for i, e := range m.config.Models[0].Decode {
				m.config.Models[0].Decode[i].URL = "http://" + s.front(e.Name, m.engines[e.Name].Addr)
			}
			m.setDrained("none")
			m.WaitWarm()
			c := &talk{name: "talk"}
			c.say(strings.Repeat("what is it? ", 20))
			if e := m.turn(c, 20); e != holder {
				t.Fatalf("%s serves the first turn", e)
			}
			c.say("and then?")
			next.Store(stopped)
			s.stopped.Lock()
			e := m.turn(c, 8)
			s.stopped.Unlock()
			if move := m.Summary(2).Move; e != other || move == nil || move.Result != migration.Late.String() {
				t.Errorf("%s serves after %+v; want %s after a move that was late", e, move, other)
			}
			m.WaitIdle()
			m.unheld()
		})
	}
}
