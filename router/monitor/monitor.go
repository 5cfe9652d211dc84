// Package monitor looks after the engines of the present configuration: it checks their health, reads what they report of themselves and
// notices their restarts.
//
// It owns the goroutines that do so, looks at engines' loads, and the records that it publishes for stock engines. What it finds stands on
// the fleet's engines. It outlives configurations: a Snapshot says what it needs of one. It sends no requests of clients and begins no
// handshakes.
//
// Package router runs it and tells it of configurations. Others ask it for engines' loads, and tell it which run of an engine has answered.
package monitor

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/internal/background"
	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/report"
)

// retiredPoll is between two looks at engines that are of no configuration any more and still have requests.
const retiredPoll = 50 * time.Millisecond

// Snapshot is what the monitor needs of one configuration.
type Snapshot struct {
	Fleet    *fleet.Fleet
	Timeouts config.Timeouts
	Stock    Stock                  // nil: stock engines are not asked for their ranks
	Token    func() (string, error) // bearer token for the engines' control routes; nil: none is sent
	RunOver  func(engine string)    // called when a run of the engine is over; nil: no call
	Gone     func(engine string)    // called when nothing is left of an engine that the configuration lost; nil: no call
}

// Leaks is what is kept of KV blocks that an engine holds, or may hold, for no request.
type Leaks interface {
	// Blocks returns how many there are.
	Blocks(e *fleet.Engine, now time.Time) int
	// AtMost notes that the engine uses no more than blocks of its KV cache, unless more than said are entered by now. It returns how
	// many are not held after all.
	AtMost(e *fleet.Engine, said, blocks int, now time.Time) (freed int)
	// Restarted notes that an engine may be another run now, which holds nothing.
	Restarted(e *fleet.Engine)
	// Drop forgets an engine that is of no configuration any more.
	Drop(e *fleet.Engine)
}

// Monitor looks after the engines of the present configuration: it checks their health, reads what they report and notices their
// restarts. It outlives configurations and goes by the present one. It is safe for concurrent use.
type Monitor struct {
	log       *slog.Logger
	current   func() *Snapshot
	tasks     *background.Tasks
	pairs     *fleet.Handshakes
	transfers *report.Transfers
	leaks     Leaks
	changed   chan struct{} // has room for one: the engines may be others

	loads     fleet.PerEngine[loads]             // looks at its load
	records   fleet.PerEngine[[]metadata.Record] // of a stock engine's present run; for the goroutine that looks at its side channel
	slowest   sync.Mutex                         // engines are taken out for late health answers one after the other
	monitored atomic.Pointer[[]*fleet.Engine]    // those that Run looks after

	mu   sync.Mutex
	lost map[string][]*fleet.Engine // by names that forgetLost has not dropped: engines that the configuration lost and newlyLost has not returned
}

// New returns a monitor that looks at nothing yet.
func New(log *slog.Logger, current func() *Snapshot, tasks *background.Tasks, pairs *fleet.Handshakes, transfers *report.Transfers, leaks Leaks) *Monitor {
	return &Monitor{
		log: log, current: current, tasks: tasks, pairs: pairs, transfers: transfers, leaks: leaks, changed: make(chan struct{}, 1),
		loads: fleet.NewPerEngine[loads](), records: fleet.NewPerEngine[[]metadata.Record](), lost: map[string][]*fleet.Engine{},
	}
}

// Update has the monitor go by the present configuration soon.
func (m *Monitor) Update() { background.Notify(m.changed) }

// Lose notes that the next configuration does not have an engine. It is called before that is the present one: Run, which may see that at once, would
// look after an engine again that it has let go already.
func (m *Monitor) Lose(e *fleet.Engine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost[e.Name] = append(m.lost[e.Name], e)
}

// newlyLost returns the engines that were lost since the last call. Run may never have seen them in a configuration.
func (m *Monitor) newlyLost() (lost []*fleet.Engine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, engines := range m.lost {
		lost = append(lost, engines...)
		m.lost[name] = nil
	}
	return lost
}

// Run looks after every engine of the present configuration until ctx ends: its health, its side channel, its event
// stream. One that the configuration loses is attended until no request needs it, and then let go.
func (m *Monitor) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	attended := make(map[*fleet.Engine]context.CancelFunc)
	note := func() {
		m.monitored.Store(new(slices.Collect(maps.Keys(attended))))
	}
	defer func() {
		for e, stop := range attended {
			stop()
			e.Upstream.Close()
		}
	}()
	for {
		lost := m.newlyLost()
		f := m.current().Fleet
		for _, e := range slices.Concat(f.Engines, lost) {
			if attended[e] != nil {
				continue
			}
			its, stop := context.WithCancel(ctx)
			attended[e] = stop
			m.watch(its, e, &wg)
		}
		note()
		late := false
		for e, stop := range attended {
			switch {
			case f.Engine(e.Name) == e:
			case e.Busy():
				late = true
			default:
				stop()
				e.Upstream.Close()
				m.leaks.Drop(e) // else what is kept of engines that come and go grows for ever
				delete(attended, e)
			}
		}
		note()
		m.forgetLost()
		var again <-chan time.Time
		if late {
			again = time.After(retiredPoll)
		}
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
		case <-again:
		}
	}
}

// Monitored returns the engines that Run looks after: those of the configuration, and lost ones until no request needs them.
func (m *Monitor) Monitored() []*fleet.Engine {
	if all := m.monitored.Load(); all != nil {
		return *all
	}
	return nil
}

// Knows reports whether an engine is of the configuration, or requests still need it from when it was.
func (m *Monitor) Knows(engine string) bool {
	return m.current().Fleet.Engine(engine) != nil || slices.ContainsFunc(m.Monitored(), func(e *fleet.Engine) bool { return e.Name == engine })
}

// forgetLost drops what is kept under the names of engines that the configuration lost, once no request needs
// them, unless other engines have these names.
func (m *Monitor) forgetLost() {
	m.mu.Lock()
	var gone []string
	for name, engines := range m.lost {
		if len(engines) == 0 && !m.Knows(name) {
			gone = append(gone, name)
			delete(m.lost, name)
		}
	}
	m.mu.Unlock()
	now := m.current()
	for _, name := range gone {
		m.transfers.Forget(name)
		if now.RunOver != nil {
			now.RunOver(name)
		}
		if now.Gone != nil {
			now.Gone(name)
		}
	}
}

// watch starts what looks after one engine.
func (m *Monitor) watch(ctx context.Context, e *fleet.Engine, wg *sync.WaitGroup) {
	wg.Go(func() { m.tasks.Keep(ctx, "health checks", func() { m.watchHealth(ctx, e) }) })
	wg.Go(func() { m.tasks.Keep(ctx, "models", func() { m.watchModels(ctx, e) }) })
	if e.Channel != nil && m.current().Stock != nil {
		wg.Go(func() { m.tasks.Keep(ctx, "side channel", func() { m.watchSideChannel(ctx, e) }) })
	}
	if e.ControlURL != "" {
		wg.Go(func() { m.tasks.Keep(ctx, "event stream", func() { m.follow(ctx, e) }) })
	}
}
