package router_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/refengine"
	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/migration"
)

// TestFault72MovesThatFail: whatever ends a move, no engine holds a block for another afterwards, and every next turn is answered as one engine
// would answer it.
func TestFault72MovesThatFail(t *testing.T) {
	for _, row := range []struct {
		name    string
		faults  []refengine.Fault // of the source
		targets []refengine.Fault // of the target, which takes part only when the source drains
		during  func(m *movers)
		config  func(*config.Config)
		leases  bool // what the source keeps is freed when its lease ends, as the target may be reading
		nobody  bool // no engine is left
		want    migration.Result
	}{
		{name: "the source refuses", faults: each(refengine.Fault{Leg: refengine.ExportLeg, Do: refengine.Refuse}), want: migration.Refused},
		{name: "the source fails", faults: each(refengine.Fault{Leg: refengine.ExportLeg, Do: refengine.Refuse, Status: 500}), want: migration.Failed},
		{name: "the source hangs", faults: each(refengine.Fault{Leg: refengine.ExportLeg, Do: refengine.Hang}), want: migration.Late, config: short},
		{name: "the source's answer is cut", faults: each(refengine.Fault{Leg: refengine.ExportLeg, Do: refengine.Cut}), leases: true, want: migration.Failed},
		{name: "the target refuses", targets: each(refengine.Fault{Leg: refengine.ImportLeg, Do: refengine.Refuse}), want: migration.Refused},
		{name: "the target fails", targets: each(refengine.Fault{Leg: refengine.ImportLeg, Do: refengine.Refuse, Status: 500}), leases: true, want: migration.Failed},
		{name: "the target hangs", targets: each(refengine.Fault{Leg: refengine.ImportLeg, Do: refengine.Hang}), leases: true, want: migration.Late, config: short},
		{name: "the target's answer is cut", targets: each(refengine.Fault{Leg: refengine.ImportLeg, Do: refengine.Cut}), want: migration.Failed},
		{name: "the source dies", during: func(m *movers) { m.kill("decode-0") }, want: migration.Refused},
		{name: "the targets die", during: func(m *movers) { m.kill("decode-1") }, nobody: true, want: migration.NoTarget},
		{name: "the source has restarted", during: func(m *movers) { m.Router.Debug().Restarted("decode-0") }, want: migration.Restarted},
		{name: "everything is short", config: func(c *config.Config) { c.Migration.MinTokens = 100_000 }, want: migration.Short},
		{name: "everything is old", config: func(c *config.Config) { c.Migration.MaxIdle = time.Nanosecond }, want: migration.Idle},
		{name: "dry run", config: func(c *config.Config) { c.Migration.Mode = config.MigrationDryRun }, want: migration.DryRun},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := newMovers(t, 2, func(c *config.Config, engines map[string]*refengine.Config) {
				engines["decode-0"].Lease = 2 * time.Second
				engines["decode-0"].Faults, engines["decode-1"].Faults = row.faults, row.targets
				if row.config != nil {
					row.config(c)
				}
			})
			gone := m.talks("decode-0", talks)
			if row.during != nil {
				row.during(m)
			}
			m.drain("decode-0")
			if got := m.resultsOf(len(gone)); got[row.want] != len(gone) || len(got) != 1 {
				t.Errorf("moves: %v; want %d of %s", got, len(gone), row.want)
			}
			if !row.nobody {
				m.goOn(gone, "decode-0")
			}
			expired := 0
			if row.leases {
				expired = len(gone)
			}
			m.freed(expired)
		})
	}
}

// each has a fault hit the legs of the moves of a test. The first leg of a kind is the handshake's.
func each(f refengine.Fault) (all []refengine.Fault) {
	first := 0
	if f.Leg == refengine.ImportLeg {
		first = 1
	}
	for f.Nth = first; f.Nth < first+talks; f.Nth++ {
		all = append(all, f)
	}
	return all
}

// talks is how many conversations the source has.
const talks = 4

// short has each move be late soon.
func short(c *config.Config) { c.Migration.Timeout = 100 * time.Millisecond }

// talks has conversations until an engine has served so many, and returns these.
func (m *movers) talks(engine string, n int) (with []*talk) {
	m.t.Helper()
	m.drain("decode-1")
	for i := 0; len(with) < n; i++ {
		c := &talk{name: fmt.Sprintf("session %d", i)}
		c.say(fmt.Sprintf("%d: %s", i, strings.Repeat(fmt.Sprintf("what is number %d? ", i), 10)))
		if m.turn(c, 20) == engine {
			with = append(with, c)
		}
	}
	return with
}

// goOn has the conversations' next turns, which are not served by that engine.
func (m *movers) goOn(talks []*talk, not string) {
	m.t.Helper()
	for _, c := range talks {
		c.say("and then?")
		if e := m.turn(c, 8); e == not {
			m.t.Errorf("%s serves a turn", e)
		}
	}
}

// kill ends an engine, and waits until the gateway knows.
func (m *movers) kill(name string) {
	m.t.Helper()
	if err := m.engines[name].Kill(); err != nil {
		m.t.Error(err)
	}
	delete(m.engines, name)
	routertest.Eventually(m.t, name+" is down", func() bool {
		for _, e := range m.Router.Stats().Engines {
			if e.Name == name {
				return !e.Up
			}
		}
		return false
	})
}

// TestFault73MovesEndWithTheGateway: a gateway that stops does not wait for a move that hangs, and leaves nothing at either engine.
func TestFault73MovesEndWithTheGateway(t *testing.T) {
	for leg, engine := range map[refengine.Leg]string{refengine.ExportLeg: "decode-0", refengine.ImportLeg: "decode-1"} {
		t.Run(leg.String(), func(t *testing.T) {
			m := newMovers(t, 2, func(c *config.Config, engines map[string]*refengine.Config) {
				engines[engine].Faults = each(refengine.Fault{Leg: leg, Do: refengine.Hang})
				engines["decode-0"].Lease, c.Migration.Timeout = 2*time.Second, 30*time.Second
			})
			m.talks("decode-0", 1)
			m.setDrained("decode-0")
			routertest.Eventually(t, "a move has begun", func() bool {
				return m.Router.Stats().Migration.Running == 1 && m.engines[engine].Books().Hanging == 1
			})
			m.Stop()
			if got := m.results(); got[migration.Stopped] != 1 || len(got) != 1 {
				t.Errorf("moves: %v", got)
			}
			expired := 0
			if leg == refengine.ImportLeg {
				expired = 1
			}
			m.freed(expired)
		})
	}
}

// TestMovesWaitWhileTheBackgroundIsFull: conversations are moved one after another where no more may run in the background.
func TestMovesWaitWhileTheBackgroundIsFull(t *testing.T) {
	m := newMovers(t, 2, func(c *config.Config, _ map[string]*refengine.Config) {
		c.Limits.Background, c.Migration.PerEngine, c.Migration.TokensPerSecond = 1, talks, 1<<30
	})
	gone := m.talks("decode-0", talks)
	m.drain("decode-0")
	if got := m.resultsOf(len(gone)); got[migration.Moved] != len(gone) || len(got) != 1 {
		t.Errorf("moves: %v; want %d moved", got, len(gone))
	}
}
