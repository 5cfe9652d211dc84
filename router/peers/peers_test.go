package peers_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/policies"
	"pdrouter/policies/forecast"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
	"pdrouter/router/peers"
)

// board is what one gateway sees of a table that all share.
type board struct {
	table *table
	lost  atomic.Bool // Sync fails
	hangs atomic.Bool // Sync waits until its context ends
	own   map[string]entry
	seen  map[string]entry
}

type table struct {
	mu      sync.Mutex
	entries map[string]entry
}

type entry struct {
	value string
	until time.Time
}

func newBoard(t *table) *board {
	return &board{table: t, own: map[string]entry{}, seen: map[string]entry{}}
}

func (b *board) Put(gateway, value string, lease time.Duration) {
	b.own[gateway] = entry{value, time.Now().Add(lease)}
}

func (b *board) Sync(ctx context.Context) error {
	if b.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if b.lost.Load() {
		return errors.New("away")
	}
	b.table.mu.Lock()
	defer b.table.mu.Unlock()
	maps.Copy(b.table.entries, b.own)
	b.seen = maps.Clone(b.table.entries)
	return nil
}

func (b *board) All() map[string]string {
	all := map[string]string{}
	for id, e := range b.seen {
		if time.Now().Before(e.until) {
			all[id] = e.value
		}
	}
	return all
}

// fleetOf returns engines of one model, by a policy.
func fleetOf(t *testing.T, policy string, names ...string) *fleet.Fleet {
	t.Helper()
	planner, err := policies.Parse("policy.yaml", []byte(policy))
	if err != nil {
		t.Fatal(err)
	}
	m := config.Model{Name: "m"}
	for _, name := range names {
		m.Engines = append(m.Engines, config.Engine{Name: name, URL: "http://127.0.0.1:1"})
	}
	cfg := config.Config{Models: []config.Model{m}}.WithDefaults()
	f, err := fleet.New(cfg, fleet.Parts{Planner: planner, Control: http.DefaultClient, Log: slog.New(slog.DiscardHandler)}, new(fleet.Fleet), config.NewSecrets(nil))
	if err != nil {
		t.Fatal(err)
	}
	f.Begin(cfg, new(fleet.Fleet))
	return f
}

// gateway is a fleet and what tells other gateways of it.
type gateway struct {
	*fleet.Fleet
	*peers.Peers
	board *board
	stop  func()
}

// start starts a gateway with engines a and b, or these.
func start(t *testing.T, shared *table, policy string, names ...string) gateway {
	if len(names) == 0 {
		names = []string{"a", "b"}
	}
	g := gateway{Fleet: fleetOf(t, policy, names...), board: newBoard(shared)}
	g.Peers = peers.New(slog.New(slog.DiscardHandler), g.board, func() *fleet.Fleet { return g.Fleet })
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { g.Run(ctx) })
	g.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(g.stop)
	return g
}

// chosen is which engine the gateway would give a request to.
func (g gateway) chosen(prompt int) string {
	var k fleet.Selection
	k.Init(g.Fleet, g.Models["m"], openai.Shape(0), nil, "", 0)
	k.Begin(fleet.Excluded{}, false)
	c, f := k.Choose(policies.Request{Model: "m", PromptTokens: prompt, Unsplittable: policies.Aggregated})
	return f.Decode[c.Decode].Name
}

const leastLoad = "default: {decode: least_load}"

// TestPeersCountEachOthersLoad: a gateway avoids the engine that another one has loaded, also one that has only begun; and what a gateway had is
// gone when it ends.
func TestPeersCountEachOthersLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &table{entries: map[string]entry{}}
		first, second := start(t, shared, leastLoad), start(t, shared, leastLoad)
		first.Engine("a").InFlight.Store(3)
		second.Engine("b").InFlight.Store(1)
		time.Sleep(time.Second)
		late := start(t, shared, leastLoad)
		synctest.Wait() // its first exchange is at once
		for _, g := range []gateway{second, late} {
			for range 4 {
				if got := g.chosen(1); got != "b" {
					t.Fatalf("%s was chosen; want b", got)
				}
			}
		}
		if a, b := late.Engine("a").Elsewhere(), late.Engine("b").Elsewhere(); a != 3 || b != 1 {
			t.Errorf("elsewhere are %d and %d; want 3 and 1", a, b)
		}
		if a, b := first.Engine("a").Elsewhere(), first.Engine("b").Elsewhere(); a != 0 || b != 1 {
			t.Errorf("beside the first gateway are %d and %d; want 0 and 1", a, b)
		}
		first.stop()
		time.Sleep(time.Second)
		if got := late.Engine("a").Elsewhere(); got != 0 {
			t.Errorf("a gateway that has ended has %d requests at a", got)
		}
		if n := late.Stats().Gateways; n != 1 {
			t.Errorf("%d other gateways; want 1", n)
		}
	})
}

// TestPeersForgetWhoIsSilent: what a gateway had counts until its lease ends, whether it was killed or cannot be heard, and also while the exchange
// hangs.
func TestPeersForgetWhoIsSilent(t *testing.T) {
	for name, cut := range map[string]func(*board){
		"lost":  func(b *board) { b.lost.Store(true) },
		"hangs": func(b *board) { b.hangs.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shared := &table{entries: map[string]entry{}}
				first, second := start(t, shared, leastLoad), start(t, shared, leastLoad)
				first.Engine("a").InFlight.Store(3)
				time.Sleep(time.Second)
				synctest.Wait()
				cut(second.board)
				time.Sleep(2 * time.Second)
				if got := second.Engine("a").Elsewhere(); got != 3 {
					t.Errorf("%d before the end of the lease; want 3", got)
				}
				time.Sleep(2 * time.Second)
				if got := second.Engine("a").Elsewhere(); got != 0 {
					t.Errorf("%d after the end of the lease; want 0", got)
				}
				if s := second.Stats(); !s.Behind || s.Failures == 0 || s.Gateways != 0 {
					t.Errorf("got %+v", s)
				}
				second.Engine("a").InFlight.Store(1)
				if got := second.chosen(1); got != "b" {
					t.Errorf("%s was chosen; want b, by its own load", got)
				}
			})
		})
	}
}

// TestPeersPrice: for a policy that prices paths, prompts, answers and rates of other gateways count.
func TestPeersPrice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &table{entries: map[string]entry{}}
		first, second := start(t, shared, "default: {policy: cost}"), start(t, shared, "default: {policy: cost}")
		prompt, answer := forecast.Leg{Prompt: 50_000, Uncached: 50_000, Answers: true}, forecast.Leg{Prompt: 1000, Answers: true}
		now := fleet.Seconds(time.Now())
		first.Engine("a").Forecast().Begin(&prompt, now)
		first.Engine("b").Forecast().Begin(&answer, now)
		first.Models["m"].Forecast.Arrived(now)
		time.Sleep(time.Second)
		synctest.Wait()
		a, b := second.Engine("a").ForecastAt(time.Now()), second.Engine("b").ForecastAt(time.Now())
		if a.Wait < .5 || a.Prompts <= 0 || b.Wait != 0 || b.Streams != 1 {
			t.Errorf("a %+v, b %+v", a, b)
		}
		if own := second.Engine("a").Own(time.Now()); own != (fleet.Others{}) {
			t.Errorf("another gateway's load is told as its own: %+v", own)
		}
		if rate := second.Models["m"].Forecast.Demand(fleet.Seconds(time.Now())).Rate; rate <= 0 {
			t.Error("the other gateway's requests are not counted")
		}
		for range 4 {
			if got := second.chosen(4000); got != "b" {
				t.Fatalf("%s was chosen; want b", got)
			}
		}
	})
}

// TestPeersIgnoreNonsense: what is no load, and numbers that no load has, do no harm.
func TestPeersIgnoreNonsense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ever := time.Now().Add(time.Hour)
		shared := &table{entries: map[string]entry{
			"text": {"x", ever}, "kind": {`{"engines":{"a":["b"]}}`, ever}, "large": {`{"engines":{"` + strings.Repeat("x", 1<<20) + `":[1]}}`, ever},
			"negative": {`{"engines":{"a":[-5,-1]},"rates":{"m":-1}}`, ever}, "huge": {`{"engines":{"b":[9223372036854775807]},"rates":{"m":1e308}}`, ever},
			"huge too": {`{"engines":{"b":[9223372036854775807]},"rates":{"m":1e308}}`, ever},
			"unknown":  {`{"engines":{"nobody":[1]},"rates":{"none":1}}`, ever}, "good": {`{"engines":{"a":[2]}}`, ever},
		}}
		g := start(t, shared, leastLoad)
		synctest.Wait()
		if got := g.Engine("a").Elsewhere(); got != 2 {
			t.Errorf("%d requests at a; want 2", got)
		}
		if got := g.Engine("b").Elsewhere(); got <= 0 {
			t.Errorf("%d requests at b", got)
		}
		if n := g.Stats().Gateways; n != 5 {
			t.Errorf("%d gateways; want 5", n)
		}
	})
}

// TestPeersAreBounded: of many engines a gateway tells of the busiest.
func TestPeersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := make([]string, 1200)
		for i := range names {
			names[i] = fmt.Sprintf("engine-%04d", i)
		}
		shared := &table{entries: map[string]entry{}}
		first := start(t, shared, leastLoad, names...)
		for i, e := range first.Engines {
			e.InFlight.Store(int64(i + 1))
		}
		second := start(t, shared, leastLoad, names...)
		time.Sleep(time.Second)
		synctest.Wait()
		for i, e := range second.Engines {
			if want := i + 1; i >= 200 && e.Elsewhere() != want || i < 200 && e.Elsewhere() != 0 {
				t.Fatalf("%s has %d; want %d, or 0 of the first 200", e.Name, e.Elsewhere(), want)
			}
		}
		for _, e := range shared.entries {
			if len(e.value) > 64<<10 {
				t.Errorf("an entry of %d bytes", len(e.value))
			}
		}
	})
}

// TestPeersAreNotUnrouted: what an engine reports is compared with what all gateways have there. None takes the requests of another one, which it
// hears of later, for requests that no gateway has sent, and neither one whose end it has seen before the engine has; but what a third party has
// there counts at both.
func TestPeersAreNotUnrouted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &table{entries: map[string]entry{}}
		gateways := []gateway{start(t, shared, leastLoad), start(t, shared, leastLoad)}
		var at atomic.Int64 // requests at the engine
		var legs sync.WaitGroup
		draws := rand.New(rand.NewPCG(3, 4))
		upTo := func(d time.Duration) time.Duration { return time.Duration(draws.Int64N(int64(d))) }
		leg := func(e *fleet.Engine) {
			there, back, took, left := upTo(5*time.Millisecond), upTo(5*time.Millisecond), 10*time.Millisecond+upTo(2*time.Second), draws.IntN(20) == 0
			e.Enter()
			legs.Go(func() {
				time.Sleep(there)
				at.Add(1)
				time.Sleep(took)
				if left { // the engine has yet to see that its client has left
					e.InFlight.Add(-1)
					time.Sleep(20 * back)
					at.Add(-1)
					return
				}
				at.Add(-1)
				time.Sleep(back)
				e.InFlight.Add(-1)
			})
		}
		run := func(d time.Duration) (most int) {
			for next, end := time.Now(), time.Now().Add(d); time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
				for _, g := range gateways {
					for range 3 {
						if draws.IntN(10) == 0 {
							leg(g.Engine("a"))
						}
					}
					if u := g.Engine("a").UnroutedAt(time.Now()); u != nil {
						most = max(most, u.Requests)
					}
				}
				if time.Now().Before(next) {
					continue
				}
				next = next.Add(2 * time.Second)
				for _, g := range gateways {
					e, asked, answered := g.Engine("a"), upTo(20*time.Millisecond), upTo(20*time.Millisecond)
					legs.Go(func() {
						before := e.CountLegs()
						time.Sleep(asked)
						r := fleet.Report{Running: int(at.Load()), Held: -1, Computed: -1}
						time.Sleep(answered)
						e.NoteReport(r, before, time.Now(), 3*time.Second)
					})
				}
			}
			return most
		}
		if most := run(10 * time.Minute); most > 0 {
			t.Errorf("%d requests are taken for unrouted ones", most)
		}
		at.Add(40)
		run(10 * time.Second)
		for i, g := range gateways {
			if u := g.Engine("a").UnroutedAt(time.Now()); u == nil || u.Requests < 20 || u.Requests > 40 {
				t.Errorf("gateway %d: %+v; want nearly 40", i, u)
			}
		}
		legs.Wait()
	})
}
