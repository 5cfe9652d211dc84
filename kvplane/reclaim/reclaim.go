// Package reclaim is the gateway's own NIXL agent: it tells stock engines that KV which an ending has left behind is not
// wanted any more, by the message that the engine's own peer would have sent. It moves no KV, registers no memory and
// decides nothing: who may be told what is the router's to know.
package reclaim

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/kvplane/nixl"
	"pdrouter/metadata"
)

// The errors of Notify that a caller may tell apart.
var (
	// ErrBusy is returned when too many messages wait already.
	ErrBusy = errors.New("too many messages wait")
	// ErrClosed is returned when the agent does not run, or not any more.
	ErrClosed = errors.New("the agent does not run")
)

// Config configures an agent. The zero value is usable.
type Config struct {
	// Backend is NIXL's plugin; default "UCX".
	Backend string
	// Queue is how many calls of Notify may wait; default 1024.
	Queue int
	// Timeout bounds one call of Notify whose context has no deadline; default 5s.
	Timeout time.Duration
	// Settle is how long the agent looks after its connections behind the last message: one that has yet to come up holds the
	// messages back until then. Default 5s.
	Settle time.Duration
	// Peers is how many ranks are known at a time; the one that was not told anything for the longest makes way. Default 4096.
	Peers int
	// Log receives what no caller is told; default: nowhere.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Backend == "" {
		c.Backend = "UCX"
	}
	if c.Queue == 0 {
		c.Queue = 1024
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	if c.Settle == 0 {
		c.Settle = 5 * time.Second
	}
	if c.Peers == 0 {
		c.Peers = 4096
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Stats is what an agent has done.
type Stats struct {
	Sent   uint64 // messages given to NIXL
	Failed uint64 // calls of Notify that have failed
	Peers  int    // ranks that are known
}

// Agent sends messages while Run runs. Its methods are safe for concurrent use.
type Agent struct {
	cfg  Config
	lib  *nixl.Library
	jobs chan *job
	over chan struct{} // closed when Run has ended
	once sync.Once

	sent, failed atomic.Uint64
	known        atomic.Int64
}

// job is one thing that the owner does.
type job struct {
	ctx     context.Context
	to      []metadata.Record
	message string
	times   int
	forget  string // an engine; then the rest is not set
	done    chan error
}

// New returns an agent that has not been opened. The library must stay open while Run runs.
func New(lib *nixl.Library, cfg Config) *Agent {
	cfg = cfg.withDefaults()
	return &Agent{cfg: cfg, lib: lib, jobs: make(chan *job, cfg.Queue), over: make(chan struct{})}
}

// Notify sends the message so many times to the agent of each of these ranks, which must be of transport nixl. It blocks
// until NIXL has taken all of them, ctx ends or the time of one call is over. Nil is no promise that they arrive: NIXL
// tells nobody. An error may mean that some were sent.
func (a *Agent) Notify(ctx context.Context, to []metadata.Record, message string, times int) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	err := a.do(&job{ctx: ctx, to: to, message: message, times: times, done: make(chan error, 1)})
	if err != nil {
		a.failed.Add(1)
		return fmt.Errorf("reclaim: %w", err)
	}
	return nil
}

// Forget drops what is known of an engine: its run is over. It does not block.
func (a *Agent) Forget(engine string) {
	select {
	case a.jobs <- &job{forget: engine}:
	default: // the next message to another run of it has the old one forgotten, too
	}
}

// Stats returns what the agent has done by now.
func (a *Agent) Stats() Stats {
	return Stats{Sent: a.sent.Load(), Failed: a.failed.Load(), Peers: int(a.known.Load())}
}

func (a *Agent) do(j *job) error {
	select {
	case <-a.over:
		return ErrClosed
	default:
	}
	select {
	case a.jobs <- j:
	default:
		return ErrBusy
	}
	select {
	case err := <-j.done:
		return err
	case <-j.ctx.Done():
		return context.Cause(j.ctx)
	case <-a.over:
		return ErrClosed
	}
}

// Run sends what is asked for until ctx ends. The agent is opened when it is first needed, which takes about half a second;
// if that fails so does the call, and the next one tries again. Run is called once.
func (a *Agent) Run(ctx context.Context) error {
	defer a.once.Do(func() { close(a.over) })
	var o *owner
	defer func() {
		if o == nil {
			return
		}
		if err := o.close(); err != nil {
			a.cfg.Log.Warn("reclaim: closing the agent", "err", err)
		}
	}()
	// While messages are on their way NIXL is driven on, first often, then less so; without any, nothing happens.
	const often, seldom = 500 * time.Microsecond, 10 * time.Millisecond
	tick := time.NewTimer(time.Hour)
	tick.Stop()
	defer tick.Stop()
	var pause time.Duration
	var until time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case j := <-a.jobs:
			if o == nil {
				if j.forget != "" {
					continue
				}
				var err error
				if o, err = open(a.lib, a.cfg); err != nil {
					o = nil
					j.done <- err
					continue
				}
			}
			n, err := o.work(j)
			a.sent.Add(uint64(n))
			a.known.Store(int64(len(o.peers)))
			if j.done != nil {
				j.done <- err
			}
			if n == 0 {
				continue
			}
			pause, until = often, time.Now().Add(a.cfg.Settle)
		case <-tick.C:
			pause = min(2*pause, seldom)
		}
		o.drive()
		if time.Now().Before(until) {
			tick.Reset(pause)
		}
	}
}

// owner is the agent itself, which belongs to one goroutine.
type owner struct {
	cfg     Config
	agent   *nixl.Agent
	backend *nixl.Backend
	peers   map[place]*peer
}

// place is a rank of an engine, whatever its run.
type place struct {
	engine string
	rank   metadata.Rank
}

// peer is a rank's agent whose metadata is loaded.
type peer struct {
	run  string // the engine's id of itself
	name string // NIXL's
	used time.Time
}

func open(lib *nixl.Library, cfg Config) (_ *owner, err error) {
	o := &owner{cfg: cfg, peers: make(map[place]*peer)}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close())
		}
	}()
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	if o.agent, err = lib.NewAgent("pdrouter-"+hex.EncodeToString(id[:]), nixl.AgentConfig{}); err != nil {
		return nil, err
	}
	if o.backend, err = o.agent.NewBackend(cfg.Backend, nil); err != nil {
		return nil, err
	}
	return o, o.agent.Use(o.backend)
}

// work does one job and returns how many messages NIXL has taken.
func (o *owner) work(j *job) (sent int, err error) {
	if j.forget != "" {
		for at := range o.peers {
			if at.engine == j.forget {
				o.forget(at)
			}
		}
		return 0, nil
	}
	if err := context.Cause(j.ctx); err != nil { // nobody waits any more, and who asked may have done something else
		return 0, err
	}
	for _, rec := range j.to {
		for range j.times {
			if err := o.send(rec, j.message); err != nil {
				return sent, fmt.Errorf("engine %s rank %v: %w", rec.Engine, rec.Rank, err)
			}
			sent++
		}
	}
	return sent, nil
}

// send sends one message. A connection that has broken is made anew once.
func (o *owner) send(rec metadata.Record, message string) error {
	for again := false; ; again = true {
		p, err := o.peer(rec)
		if err != nil {
			return err
		}
		if err = o.agent.Notify(p.name, []byte(message)); err == nil {
			p.used = time.Now()
			return nil
		}
		o.forget(place{rec.Engine, rec.Rank})
		if again {
			return err
		}
	}
}

// peer returns the rank's agent of that run, and forgets that of an earlier one.
func (o *owner) peer(rec metadata.Record) (*peer, error) {
	at := place{rec.Engine, rec.Rank}
	if p := o.peers[at]; p != nil {
		if p.run == rec.EngineID {
			return p, nil
		}
		o.forget(at)
	}
	if rec.Transport != "nixl" {
		return nil, fmt.Errorf("its transport is %q; want nixl", rec.Transport)
	}
	if len(o.peers) >= o.cfg.Peers {
		o.forget(o.oldest())
	}
	name, err := o.agent.Load(rec.Blob)
	if err != nil {
		return nil, err
	}
	for _, p := range o.peers {
		if p.name == name {
			return nil, fmt.Errorf("its agent is called as another rank's is")
		}
	}
	p := &peer{run: rec.EngineID, name: name}
	o.peers[at] = p
	if err := o.agent.Connect(name); err != nil {
		o.forget(at)
		return nil, err
	}
	return p, nil
}

// oldest returns the rank that was not told anything for the longest.
func (o *owner) oldest() (at place) {
	var used time.Time
	for k, p := range o.peers {
		if used.IsZero() || p.used.Before(used) {
			at, used = k, p.used
		}
	}
	return at
}

func (o *owner) forget(at place) {
	p := o.peers[at]
	if p == nil {
		return
	}
	delete(o.peers, at)
	if err := o.agent.Forget(p.name); err != nil {
		o.cfg.Log.Debug("reclaim: forgetting a rank", "engine", at.engine, "rank", at.rank.String(), "err", err)
	}
}

// drive lets connections come up, and throws away what engines may say: nothing is expected of them.
func (o *owner) drive() {
	if err := o.agent.Notifications(func(string, []byte) {}); err != nil {
		o.cfg.Log.Debug("reclaim: notifications", "err", err)
	}
}

func (o *owner) close() error {
	var errs []error
	for at := range o.peers {
		o.forget(at)
	}
	if o.backend != nil {
		errs = append(errs, o.backend.Close())
	}
	if o.agent != nil {
		errs = append(errs, o.agent.Close())
	}
	return errors.Join(errs...)
}
