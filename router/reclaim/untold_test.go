package reclaim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"pdrouter/internal/background"
	"pdrouter/metadata"
	"pdrouter/policies"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
)

// fakeAgent refuses or hangs as long as it is told to.
type fakeAgent struct {
	hangs, refuses atomic.Bool
	asked          atomic.Int64
	told           map[string]int
}

func (f *fakeAgent) Notify(ctx context.Context, _ []metadata.Record, message string, _ int) error {
	f.asked.Add(1)
	switch {
	case f.hangs.Load():
		<-ctx.Done()
		return ctx.Err()
	case f.refuses.Load():
		return errors.New("refused")
	}
	f.told[message]++
	return nil
}

func (*fakeAgent) Forget(string) {}

// fakeStock is an engine's side channel.
type fakeStock struct{ run atomic.Value }

func (f *fakeStock) First(context.Context, fleet.SideChannel) (metadata.Record, error) {
	return metadata.Record{EngineID: f.run.Load().(string)}, nil
}

func (f *fakeStock) All(_ context.Context, at fleet.SideChannel) ([]metadata.Record, error) {
	if at.EngineID != f.run.Load().(string) {
		return nil, errors.New("another run")
	}
	return []metadata.Record{{EngineID: f.run.Load().(string)}}, nil
}

func (*fakeStock) Known(context.Context, string) []metadata.Record   { return nil }
func (*fakeStock) Publish(context.Context, []metadata.Record) error  { return nil }
func (*fakeStock) Withdraw(context.Context, []metadata.Record) error { return nil }

// pinning is an engine that pins what it has answered.
type pinning struct {
	*Reclaimer
	t     *testing.T
	agent *fakeAgent
	stock *fakeStock
	s     *Snapshot
	e     *fleet.Engine
}

// inPinning runs a test in virtual time. At its end the gateway stops: a goroutine that is left fails it.
func inPinning(t *testing.T, test func(p *pinning)) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config.Config{Models: []config.Model{{Name: "m", Connector: "vllm-nixl-pull", Engines: []config.Engine{{Name: "e", URL: "http://127.0.0.1:1"}}}}}.WithDefaults()
		log := slog.New(slog.DiscardHandler)
		f, err := fleet.New(cfg, fleet.Parts{Planner: policies.Default(), Log: log, Control: new(http.Client)}, new(fleet.Fleet), config.NewSecrets(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		f.Begin(cfg, new(fleet.Fleet))
		tasks := background.NewTasks(log, context.DeadlineExceeded)
		p := &pinning{
			t: t, agent: &fakeAgent{told: map[string]int{}}, stock: new(fakeStock), e: f.Engines[0],
			Reclaimer: New(log, tasks, nil, nil, new(Leaks)),
		}
		p.stock.run.Store("run")
		p.s = &Snapshot{Fleet: f, Limits: cfg.Limits, Timeouts: cfg.Timeouts, Agent: p.agent, Stock: p.stock}
		test(p)
		tasks.Stop(errors.New("the gateway stops"))
		tasks.Wait()
	})
}

// ends ends the pins of n answers, and waits until the engine was told, or not.
func (p *pinning) ends(n int) {
	for i := range n {
		p.Answered(p.s, p.e, fmt.Appendf(nil, `{"do_remote_decode":true,"remote_block_ids":[[1,2]],"remote_engine_id":"run","remote_request_id":"answer-%d",`+
			`"remote_host":"h","remote_port":5600,"remote_num_tokens":32,"tp_size":1}`, i))
	}
	synctest.Wait()
}

func (p *pinning) held() int { return p.Leaks.Blocks(p.e, time.Now()) }

func (p *pinning) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestPinsAreToldAgain: an engine that could not be told to free what it pins is told once it can be. Until then its blocks count as held.
func TestPinsAreToldAgain(t *testing.T) {
	for name, fault := range map[string]func(*fakeAgent, bool){
		"refuses": func(a *fakeAgent, now bool) { a.refuses.Store(now) },
		"hangs":   func(a *fakeAgent, now bool) { a.hangs.Store(now) },
	} {
		t.Run(name, func(t *testing.T) {
			inPinning(t, func(p *pinning) {
				fault(p.agent, true)
				p.ends(3)
				p.wait(2 * time.Minute)
				if got := p.Leaks.Blocked(p.e, time.Now())["not_told"]; got != 6 || len(p.agent.told) != 0 {
					t.Fatalf("%d blocks are not told of, %v; want 6", got, p.agent.told)
				}
				if p.agent.asked.Load() > 20 {
					t.Errorf("it was tried %d times in two minutes", p.agent.asked.Load())
				}
				fault(p.agent, false)
				p.wait(longestAgain + p.s.Timeouts.Cleanup)
				if len(p.agent.told) != 3 || p.held() != 0 {
					t.Fatalf("%v are told of, %d blocks held; want 3 and none", p.agent.told, p.held())
				}
				p.wait(time.Hour)
				for message, n := range p.agent.told {
					if n != 1 {
						t.Errorf("%s was told %d times", message, n)
					}
				}
				if freed := p.Leaks.Freed(); len(freed) != 1 || freed[0].Count != 3 {
					t.Errorf("%+v", freed)
				}
				p.agent.refuses.Store(true)
				p.ends(1)
				p.agent.refuses.Store(false)
				if p.wait(time.Minute); p.held() != 0 {
					t.Error("it is not told of what ends later")
				}
			})
		})
	}
}

// TestToldPinsAreNotKept: they would keep the engine and the configuration that they are of.
func TestToldPinsAreNotKept(t *testing.T) {
	inPinning(t, func(p *pinning) {
		p.agent.refuses.Store(true)
		p.ends(3)
		var pins []weak.Pointer[Pinned]
		of := p.untold.Of(p.e)
		of.mu.Lock()
		for _, pin := range of.pins {
			pins = append(pins, weak.Make(pin.Pinned))
		}
		of.mu.Unlock()
		p.agent.refuses.Store(false)
		if p.wait(time.Minute); len(pins) != 3 || len(p.agent.told) != 3 {
			t.Fatalf("%v are told of, of %d; want 3", p.agent.told, len(pins))
		}
		runtime.GC()
		for i, pin := range pins {
			if pin.Value() != nil {
				t.Errorf("%d is kept", i)
			}
		}
	})
}

// TestPinsAreNotToldInVain: an engine is not told any more when its own time for what it pins is over, it is another run, or of no configuration, nor when
// the gateway stops. What it is told of is bounded.
func TestPinsAreNotToldInVain(t *testing.T) {
	for name, end := range map[string]func(*pinning){
		"its own time": func(p *pinning) { p.wait(pinnedFor) },
		"another run": func(p *pinning) {
			p.e.Generation.Add(1)
			p.Leaks.Restarted(p.e)
		},
		"another run, which is not noticed": func(p *pinning) { p.stock.run.Store("next") },
		"of no configuration":               func(p *pinning) { p.Leaks.Drop(p.e) },
	} {
		t.Run(name, func(t *testing.T) {
			inPinning(t, func(p *pinning) {
				p.agent.refuses.Store(true)
				p.ends(3)
				if p.held() != 6 {
					t.Fatalf("%d blocks are held; want 6", p.held())
				}
				p.wait(10 * time.Second)
				end(p)
				p.agent.refuses.Store(false)
				asked := p.agent.asked.Load()
				p.wait(time.Hour)
				if p.agent.asked.Load() != asked || p.held() != 0 || len(p.untold.Of(p.e).pins) != 0 || p.untold.Of(p.e).running {
					t.Errorf("it is told %d times more; %d blocks are held, %+v", p.agent.asked.Load()-asked, p.held(), p.untold.Of(p.e))
				}
			})
		})
	}
	t.Run("bounded", func(t *testing.T) {
		inPinning(t, func(p *pinning) {
			p.agent.refuses.Store(true)
			for range 2 * mostUntold {
				p.ends(1)
			}
			if n := len(p.untold.Of(p.e).pins); n > mostUntold || p.held() != 4*mostUntold {
				t.Errorf("%d are to be told of, %d blocks held", n, p.held())
			}
		})
	})
}
