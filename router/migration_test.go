package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"pdrouter/internal/refengine"
	"pdrouter/internal/refengine/refenginetest"
	"pdrouter/internal/routertest"
	"pdrouter/metadata"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/migration"
)

// movers is a gateway in front of reference engines that hand KV over as stock vLLM does, one prefill engine and several of decode.
type movers struct {
	*routertest.Gateway
	t       *testing.T
	config  config.Config
	pull    *refengine.Pull
	engines map[string]*refenginetest.Served
	made    map[string]refengine.Config
	alone   *refenginetest.Served // whose answers are right

	mu    sync.Mutex
	moves []migration.Ended
}

func newMovers(t *testing.T, decodes int, change func(*config.Config, map[string]*refengine.Config)) *movers {
	t.Helper()
	return newMoversBy(t, planned(t, "default: {prefill: prefix, decode: session}"), decodes, change)
}

// planned is a policy.
func planned(t *testing.T, text string) *policies.Policy {
	t.Helper()
	p, err := policies.Parse("policy", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// newMoversBy is newMovers with another policy.
func newMoversBy(t *testing.T, planner fleet.Planner, decodes int, change func(*config.Config, map[string]*refengine.Config)) *movers {
	t.Helper()
	m := &movers{t: t, pull: new(refengine.Pull), engines: map[string]*refenginetest.Served{}, made: map[string]refengine.Config{}}
	names := []string{"prefill-0"}
	for i := range decodes {
		names = append(names, fmt.Sprintf("decode-%d", i))
	}
	engines := map[string]*refengine.Config{}
	for _, name := range names {
		engines[name] = &refengine.Config{Name: name, Model: "tiny", Pull: m.pull, PrefixCache: true, Blocks: 4096, Shape: refengine.Shape{Layers: 1, Heads: 1, HeadDim: 2}}
	}
	model := config.Model{Name: "tiny", Connector: connector.NamePull}
	m.config = config.Config{Models: []config.Model{model}, Migration: config.Migration{Mode: config.MigrationEnabled, MinTokens: 32}}
	if change != nil {
		change(&m.config, engines)
	}
	for i, name := range names {
		m.engines[name], m.made[name] = refenginetest.Run(t, *engines[name]), *engines[name]
		entry := config.Engine{Name: name, URL: "http://" + m.engines[name].Addr}
		if engines[name].PlainNames {
			entry.RequestIDRandomizationDisabled, entry.SideChannel = true, fmt.Sprintf("127.0.0.1:%d", i+1) // as Pull numbers them
		}
		if name == "prefill-0" {
			m.config.Models[0].Prefill = append(m.config.Models[0].Prefill, entry)
		} else {
			m.config.Models[0].Decode = append(m.config.Models[0].Decode, entry)
		}
	}
	own := *engines["prefill-0"]
	own.Name, own.Pull, own.PrefixCache = "alone", nil, false
	m.alone = refenginetest.Run(t, own)
	m.Gateway = routertest.Start(t, m.config, router.Parts{Planner: planner, Stock: stockOf{m.pull}, Reclaim: stockOf{m.pull}, Moved: func(e migration.Ended) {
		m.mu.Lock()
		m.moves = append(m.moves, e)
		m.mu.Unlock()
	}})
	m.WaitWarm()
	return m
}

// ended are the moves that were or were not, as far as they are over.
func (m *movers) ended() []migration.Ended {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.moves)
}

// results counts the moves that are over by what became of them.
func (m *movers) results() map[migration.Result]int {
	out := map[migration.Result]int{}
	for _, e := range m.ended() {
		out[e.Result]++
	}
	return out
}

// resultsOf waits until so many moves are over, and counts them by what became of them. A move is told of just after the engine has none left.
func (m *movers) resultsOf(n int) map[migration.Result]int {
	m.t.Helper()
	routertest.Eventually(m.t, "moves are over", func() bool { return len(m.ended()) >= n })
	return m.results()
}

// drain has a decode engine, and no other, take no more requests, and waits until its conversations are moved.
func (m *movers) drain(name string) {
	m.t.Helper()
	m.setDrained(name)
	routertest.Eventually(m.t, "no conversation is left to be moved", func() bool {
		may, left := m.Router.MayStop(name), m.Router.MovesLeft(name)
		if may.MayStop && left > 0 {
			m.t.Errorf("%s may stop, and has %d conversations to move", name, left)
		}
		return left == 0
	})
}

// setDrained has a decode engine, and no other, take no more requests.
func (m *movers) setDrained(name string) {
	m.t.Helper()
	next := m.config
	next.Models = slices.Clone(next.Models)
	next.Models[0].Decode = slices.Clone(next.Models[0].Decode)
	for i := range next.Models[0].Decode {
		d := &next.Models[0].Decode[i]
		d.Drain = d.Name == name
	}
	if err := m.Router.Apply(next, m.Parts); err != nil {
		m.t.Fatal(err)
	}
}

// stockOf answers for side channels, and notifies engines, as stock vLLM's agents would be.
type stockOf struct{ pull *refengine.Pull }

func (s stockOf) First(_ context.Context, at fleet.SideChannel) (metadata.Record, error) {
	return s.pull.First(at.Port)
}
func (s stockOf) All(_ context.Context, at fleet.SideChannel) ([]metadata.Record, error) {
	r, err := s.pull.First(at.Port)
	return []metadata.Record{r}, err
}
func (stockOf) Known(context.Context, string) []metadata.Record   { return nil }
func (stockOf) Publish(context.Context, []metadata.Record) error  { return nil }
func (stockOf) Withdraw(context.Context, []metadata.Record) error { return nil }
func (stockOf) Forget(string)                                     {}
func (s stockOf) Notify(ctx context.Context, to []metadata.Record, message string, _ int) error {
	return s.pull.Notify(ctx, to[0].EngineID, message)
}

// talk is a conversation as its client has it.
type talk struct {
	name     string
	messages []map[string]string
	salt     string
	adapter  string // "": the model itself
}

func (c *talk) say(text string) {
	c.messages = append(c.messages, map[string]string{"role": "user", "content": text})
}

func (c *talk) body(tokens int, stream bool) string {
	b, _ := json.Marshal(map[string]any{"model": "tiny", "messages": c.messages, "max_tokens": tokens, "stream": stream, "ignore_eos": true, "cache_salt": c.salt})
	return string(b)
}

// turn has the gateway answer, compares that with one engine's answer, and returns by which engine it was served.
func (m *movers) turn(c *talk, tokens int) string {
	m.t.Helper()
	body := c.body(tokens, false)
	r := m.Post(routertest.PathChat, body, "X-Session-Id", c.name)
	got := answerOf(m.t, r)
	resp, err := http.Post("http://"+m.alone.Addr+routertest.PathChat, "application/json", strings.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	var want chatAnswer
	if err := json.NewDecoder(resp.Body).Decode(&want); err != nil {
		m.t.Fatal(err)
	}
	if got != want.Choices[0].Message.Content {
		m.t.Fatalf("%s: the answer is %q; want %q", c.name, got, want.Choices[0].Message.Content)
	}
	c.messages = append(c.messages, map[string]string{"role": "assistant", "content": got})
	return r.Header.Get("X-Pdrouter-Decode")
}

type chatAnswer struct {
	Choices []struct {
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
}

func answerOf(t *testing.T, r routertest.Reply) string {
	t.Helper()
	var a chatAnswer
	if r.Status != 200 || json.Unmarshal([]byte(r.Body), &a) != nil || strings.Contains(r.Body, `token_ids":[`) {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	return a.Choices[0].Message.Content
}

// tokensOf are the prompt tokens of the decode engines but one, by where their KV came from.
func (m *movers) tokensOf(but string) (b refengine.Books) {
	for name, e := range m.engines {
		if strings.HasPrefix(name, "decode") && name != but {
			one := e.Books()
			b.External, b.Computed, b.Cached = b.External+one.External, b.Computed+one.Computed, b.Cached+one.Cached
		}
	}
	return b
}

// TestDrainMovesConversations drains the engine that has the most of 50 conversations each of which has had a turn. Their next turns are served
// by the other engines, which have nine tenths and more of their prompts in their caches, by their own counts.
func TestDrainMovesConversations(t *testing.T) {
	m := newMovers(t, 3, nil)
	at := map[string][]*talk{}
	for i := range 1000 {
		c := &talk{name: fmt.Sprintf("session %d", i)}
		c.say(fmt.Sprintf("%d: %s", i, strings.Repeat(fmt.Sprintf("what is number %d? ", i), 20)))
		e := m.turn(c, 40)
		at[e] = append(at[e], c)
		if len(at["decode-0"]) == 50 {
			break
		}
	}
	gone := at["decode-0"]
	if len(gone) != 50 {
		t.Fatalf("%d conversations", len(gone))
	}
	m.drain("decode-0")
	if got := m.resultsOf(50); got[migration.Moved] != 50 || len(got) != 1 {
		t.Fatalf("moves: %v", got)
	}
	turns := len(gone)
	for _, served := range at {
		turns += len(served)
	}
	before := m.tokensOf("decode-0")
	for _, c := range gone {
		c.say("and then?")
		if e := m.turn(c, 8); e == "decode-0" {
			t.Fatal("an engine that drains serves a turn")
		}
	}
	if got := m.Summary(turns).EarlierMove; got == nil || got.From != "decode-0" || got.Result != "moved" || got.Reason != "drain" || got.Tokens == 0 {
		t.Errorf("the record of the last turn says of its conversation's move: %+v", got)
	}
	if got := m.Router.Stats().Migration.Moves; len(got) != 32 || got[0].State != "moved" || got[0].From != "decode-0" {
		t.Errorf("%d moves are shown: %+v", len(got), got[0])
	}
	after := m.tokensOf("decode-0")
	cached, all := after.Cached-before.Cached, after.Cached+after.External+after.Computed-before.Cached-before.External-before.Computed
	t.Logf("%d of %d prompt tokens were cached", cached, all)
	if 10*cached < 9*all {
		t.Errorf("%d of %d prompt tokens were cached", cached, all)
	}
	m.freed(0)
}

// freed waits until no engine holds a block for another. So many leases may have ended.
func (m *movers) freed(leases int) {
	m.t.Helper()
	if expired := m.unheld(); expired != leases {
		m.t.Errorf("%d leases have ended; want %d", expired, leases)
	}
}

// unheld waits until no engine holds a block for another, and returns how many leases have ended.
func (m *movers) unheld() (leases int) {
	m.t.Helper()
	for name, e := range m.engines {
		routertest.Eventually(m.t, name+" holds nothing", func() bool {
			b := e.Books()
			return b.Held == 0 && b.Free == b.Blocks && b.Running+b.Waiting+b.Receiving == 0
		})
		leases += e.Books().Expired
	}
	return leases
}
