package router_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/refengine"
	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/migration"
)

// hotSpot is a gateway whose policy prices paths in front of two engines that serve alone, one of which has a conversation and many streams.
type hotSpot struct {
	*movers
	talk *talk
	end  context.CancelFunc // ends the streams
}

const (
	// hotPolicy has an objective that the engines of a test keep as long as they have little to do.
	hotPolicy = "default: {policy: cost, objective: {ttft: 2s, itl: 20ms}}"
	holder    = "decode-0" // of the conversation
	idle      = "decode-1"
	streams   = 24
)

func newHotSpot(t *testing.T, change func(*config.Config, map[string]*refengine.Config)) *hotSpot {
	t.Helper()
	h := &hotSpot{talk: new(talk)}
	h.movers = newMoversBy(t, planned(t, hotPolicy), 2, func(c *config.Config, engines map[string]*refengine.Config) {
		for _, e := range engines {
			e.PrefillCost = 200 * time.Microsecond
			e.Blocks, e.Lease = 8192, 2*time.Second
		}
		engines[holder].DecodeCost = 2 * time.Millisecond
		c.Health.SlowStart = new(time.Duration)
		if change != nil {
			change(c, engines)
		}
	})
	h.config.Models[0].Prefill[0].Drain = true
	h.setDrained(idle)
	for i := range 4 { // from which it is learned how long engines take for what is new, and what they have
		other := &talk{name: fmt.Sprint("before ", i)}
		other.say(fmt.Sprint(i, strings.Repeat(" before", 60*(1+i))))
		for turn := range 3 {
			h.begin(other)
			other.say(strings.Repeat("and then? ", 20*turn))
		}
	}
	h.talk.say(strings.Repeat("a long story ", 250))
	h.begin(h.talk)
	ctx, end := context.WithCancel(context.Background())
	h.end = end
	t.Cleanup(end)
	begun := make(chan struct{}, streams)
	for i := range streams {
		other := &talk{name: fmt.Sprint("stream ", i)}
		other.say(fmt.Sprint(i))
		go h.ask(ctx, other.body(3500, true), func() { begun <- struct{}{} })
	}
	for range streams {
		<-begun
	}
	h.setDrained("none")
	h.talk.say(strings.Repeat("and then? ", 25))
	return h
}

// ask streams an answer, and returns its text.
func (h *hotSpot) ask(ctx context.Context, body string, begun func()) (text string) {
	req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+h.Addr+routertest.PathChat, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if ctx.Err() == nil {
			h.t.Error(err)
		}
		return ""
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		var a chatAnswer
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || json.Unmarshal([]byte(data), &a) != nil || len(a.Choices) == 0 {
			continue
		}
		if begun != nil {
			begun()
			begun = nil
		}
		text += a.Choices[0].Delta.Content
	}
	return text
}

// begin has a turn of a conversation streamed.
func (h *hotSpot) begin(c *talk) {
	c.messages = append(c.messages, map[string]string{"role": "assistant", "content": h.ask(context.Background(), c.body(8, true), nil)})
}

// explained are the paths of the conversation's next turn.
func (h *hotSpot) explained() fleet.Explanation {
	h.t.Helper()
	_, e, _ := explain(h.t, h.Gateway, "/explain"+routertest.PathChat, h.talk.body(8, true))
	return e
}

// TestHotSpotIsMoved: the next turn of a conversation whose engine has many streams is served by an idle engine, which is given the KV first and computes
// only what is new and at most one block.
func TestHotSpotIsMoved(t *testing.T) {
	for range 5 {
		if hotSpotIsMoved(t) {
			return
		}
	}
	t.Error("each move took longer than computing the prompt anew")
}

// hotSpotIsMoved reports false if the machine was so busy that the move took longer than the prompt is thought to take, and the request went on without.
func hotSpotIsMoved(t *testing.T) bool {
	h := newHotSpot(t, nil)
	e := h.explained()
	if p := e.Paths[0]; p.Move == nil || p.Move.From != holder || !p.Taken || p.Decode != idle || !strings.HasSuffix(e.Why, ", after a move") {
		t.Errorf("%s: %+v", e.Why, e.Paths)
	}
	before := h.engines[idle].Books()
	if e := h.turn(h.talk, 8); e != idle {
		t.Errorf("%s serves; want %s", e, idle)
	}
	after := h.engines[idle].Books()
	h.end()
	h.WaitIdle()
	got := h.results()
	if got[migration.Late] == 1 && len(got) == 1 {
		return false
	}
	const news, template, block = 250, 32, 16
	if computed, cached := after.Computed-before.Computed, after.Cached-before.Cached; computed > news+template+block || cached < 3000 {
		t.Errorf("%d tokens are computed and %d cached", computed, cached)
	}
	if got[migration.Moved] != 1 || len(got) != 1 || h.moves[0].Reason != migration.ForRoute {
		t.Errorf("moves: %v", h.moves)
	}
	h.freed(0)
	return true
}

// byMove is a planner that has a conversation moved where it can be, whatever that costs, and else takes the engine that has most of the prompt.
type byMove struct {
	*policies.Policy
	patience time.Duration
}

func (p byMove) Choose(_ policies.Request, f policies.Fleet, _ policies.Draw) policies.Choice {
	best := -1
	for i, e := range f.Decode {
		for n, m := range f.Forecast.Moves {
			if e.Usable && m.Decode[i] > 0 {
				return policies.Choice{Prefill: -1, Decode: i, Move: uint8(n + 1), Patience: float32(p.patience.Seconds()), Reason: policies.Cheaper}
			}
		}
		if e.Usable && (best < 0 || e.Cached > f.Decode[best].Cached) {
			best = i
		}
	}
	return policies.Choice{Prefill: -1, Decode: best, Reason: policies.Cheaper}
}

// newByMove is a gateway with that planner, and a conversation of one turn, whose next one has begun.
func newByMove(t *testing.T, patience time.Duration, change func(*config.Config, map[string]*refengine.Config)) (*movers, *talk) {
	t.Helper()
	m := newMoversBy(t, byMove{planned(t, "default: {policy: cost}"), patience}, 2, func(c *config.Config, engines map[string]*refengine.Config) {
		engines[holder].Lease, c.Migration.TokensPerSecond = 2*time.Second, 1<<30
		if change != nil {
			change(c, engines)
		}
	})
	c := &talk{name: "talk"}
	c.say(strings.Repeat("what is it? ", 20))
	if e := m.turn(c, 20); e != holder {
		t.Fatalf("%s serves the first turn", e)
	}
	c.say("and then?")
	return m, c
}

// TestFault74MovesInTheWay: whatever ends the move that a request waits for, the request is answered as one engine would answer it, and no engine holds
// a block for another afterwards.
func TestFault74MovesInTheWay(t *testing.T) {
	for _, row := range []struct {
		name    string
		faults  []refengine.Fault // of the source
		targets []refengine.Fault
		mode    string
		during  func(m *movers) // while the move hangs
		expired int
		want    migration.Result
		by      string // who serves then; "" if that does not matter
	}{
		{name: "it is moved", want: migration.Moved},
		{name: "dry run", mode: config.MigrationDryRun, want: migration.DryRun, by: holder},
		{name: "the source refuses", faults: each(refengine.Fault{Leg: refengine.ExportLeg, Do: refengine.Refuse}), want: migration.Refused, by: holder},
		{name: "the source fails", faults: each(refengine.Fault{Leg: refengine.ExportLeg, Do: refengine.Refuse, Status: 500}), want: migration.Failed, by: holder},
		{name: "the source hangs", faults: each(refengine.Fault{Leg: refengine.ExportLeg, Do: refengine.Hang}), want: migration.Late, by: idle},
		{name: "the source dies", faults: each(refengine.Fault{Leg: refengine.ExportLeg, Do: refengine.Hang}), during: func(m *movers) { m.kill(holder) }, want: migration.Refused, by: idle},
		{name: "the target refuses", targets: each(refengine.Fault{Leg: refengine.ImportLeg, Do: refengine.Refuse}), want: migration.Refused, by: holder},
		{name: "the target hangs", targets: each(refengine.Fault{Leg: refengine.ImportLeg, Do: refengine.Hang}), expired: 1, want: migration.Late, by: holder},
		{name: "the target dies", targets: each(refengine.Fault{Leg: refengine.ImportLeg, Do: refengine.Hang}), during: func(m *movers) { m.kill(idle) }, want: migration.Refused, by: holder},
	} {
		t.Run(row.name, func(t *testing.T) {
			patience := 300 * time.Millisecond
			if row.during != nil || row.want == migration.Moved {
				patience = 20 * time.Second
			}
			m, c := newByMove(t, patience, func(cfg *config.Config, engines map[string]*refengine.Config) {
				engines[holder].Faults, engines[idle].Faults, cfg.Migration.Mode = row.faults, row.targets, cmp.Or(row.mode, config.MigrationEnabled)
			})
			over := make(chan struct{})
			if row.during == nil {
				close(over)
			} else {
				go func() {
					defer close(over)
					m.hangs(1)
					row.during(m)
				}()
			}
			if e := m.turn(c, 8); row.by != "" && e != row.by {
				t.Errorf("%s serves; want %s", e, row.by)
			}
			s := m.Summary(2)
			if s.Move == nil || s.Move.Result != row.want.String() || s.Move.From != holder || s.Move.To != idle || s.Status != 200 || s.Move.Took > s.Phases.Total {
				t.Errorf("%+v; want %s", s.Move, row.want)
			}
			routertest.Eventually(t, "the move is over", func() bool { return m.results()[row.want] == 1 })
			<-over
			m.freed(row.expired)
		})
	}
}

// hangs waits until so many moves are under way, and hang at an engine.
func (m *movers) hangs(n int) {
	m.t.Helper()
	routertest.Eventually(m.t, "a move has begun", func() bool {
		hanging := 0
		for _, e := range m.engines {
			hanging += e.Books().Hanging
		}
		return m.Router.Stats().Migration.Running == n && hanging == n
	})
}

// TestFault75MovesWithoutAsker: a move ends when the client leaves or the gateway stops meanwhile, and leaves nothing at either engine.
func TestFault75MovesWithoutAsker(t *testing.T) {
	for _, leg := range []refengine.Leg{refengine.ExportLeg, refengine.ImportLeg} {
		for _, stops := range []bool{false, true} {
			t.Run(fmt.Sprint(leg, " stops ", stops), func(t *testing.T) {
				m, c := newByMove(t, 20*time.Second, func(_ *config.Config, engines map[string]*refengine.Config) {
					e := engines[holder]
					if leg == refengine.ImportLeg {
						e = engines[idle]
					}
					e.Faults = each(refengine.Fault{Leg: leg, Do: refengine.Hang})
				})
				ctx, leave := context.WithCancel(context.Background())
				over := make(chan struct{})
				go func() {
					defer close(over)
					req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+m.Addr+routertest.PathChat, strings.NewReader(c.body(8, false)))
					req.Header.Set("Content-Type", "application/json")
					req.Header.Set("X-Session-Id", c.name)
					if resp, err := http.DefaultClient.Do(req); err == nil {
						_ = resp.Body.Close()
					}
				}()
				m.hangs(1)
				if stops {
					m.Stop()
				} else {
					leave()
				}
				<-over
				leave()
				expired := 0
				if leg == refengine.ImportLeg {
					expired = 1
				}
				routertest.Eventually(t, "the move is over", func() bool { return m.results()[migration.Unneeded]+m.results()[migration.Stopped] == 1 })
				m.freed(expired)
			})
		}
	}
}

// TestOneMoveInATurn: a conversation is moved once in a turn, and in the next one again.
func TestOneMoveInATurn(t *testing.T) {
	m, c := newByMove(t, 20*time.Second, nil)
	for turn := 1; turn <= 3; turn++ {
		m.turn(c, 8)
		if got := m.results()[migration.Moved]; got != turn {
			t.Fatalf("%d moves in %d turns: %v", got, turn, m.ended())
		}
		c.say("and then?")
	}
	m.freed(0)
}
