package simulate

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"pdrouter/bench/load"
	"pdrouter/bench/sim"
	"pdrouter/router/admission"
	"pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/migration"
	"pdrouter/router/tokens"
)

// Conversations are replayed on engines of either role that come and go. Prompts go on with the answer before, which engines have in their caches then.
// What is moved, and when, is decided by package router/migration, as in a gateway.
type Conversations struct {
	Setup                 // its layout is of the engines at the beginning
	Rate    float64       // turns a second, while conversations begin
	Window  time.Duration // in which conversations begin
	Context int           // tokens of the first prompt
	New     int           // tokens of each next one that come behind the answer before
	Answer  int           // tokens
	Turns   int           // of a conversation
	Pause   time.Duration // between an answer and the next turn
	Changes []Change
	Uses    []string // for which KV is moved, as in migration.uses; none: nothing is
}

// TurnKind says what has become of the engines that served the turn before.
type TurnKind uint8

const (
	Stay    TurnKind = iota // one of them serves still
	Drained                 // they drain, or have drained
	Lost                    // they were lost, one of them at least
	turnKinds
)

func (k TurnKind) String() string { return [...]string{"stay", "drained", "lost"}[k] }

// Conversed is what came of conversations.
type Conversed struct {
	TTFT  [turnKinds][]time.Duration // of second and later turns
	Moves map[string]int             // by "reason result"
	Again int                        // turns that were given to other engines as one was lost
}

// conversations is a replay of conversations under way.
type conversations struct {
	*replay
	spec     Conversations // its layout without the engines that are added
	plans    *migration.Plans
	snapshot migration.Snapshot
	gateway  []*fleet.Engine // as the gateway knows the engines
	model    *fleet.Model
	lost     []bool  // by engine
	events   []event // the next first
	drawn    int     // events so far
	now      time.Duration
	turns    []*turn         // under way, in the order in which they came
	all      []*conversation // by the number in their token ids
	under    []*carried      // moves
	due      bool            // moves may be
	moves    int             // so far
	came     Conversed
	err      error
}

// event is something that is to happen.
type event struct {
	at  time.Duration
	nth int
	do  func() error
}

// conversation is what is common to the turns of one.
type conversation struct {
	ids    []uint32   // tokens of all turns, of which none is in another conversation
	blocks []int      // load.Request.Blocks of all turns
	at     [2]*engine // that served its latest turn: the one that answered, and the one that computed the prompt for it; nil: none did
	runs   [2]uint64  // of these
}

// turn is a turn of a conversation, under way.
type turn struct {
	load.Request // what is left to do of it
	*conversation
	nth     int // from 0
	kind    TurnKind
	outcome *load.Outcome
	leg     *leg // that answers; nil: it waits for a move
	looked  bool // for a move
}

// Run replays the conversations to the end of the last answer.
func (s Conversations) Run() (Conversed, error) {
	k, err := newConversations(s)
	if err != nil {
		return Conversed{}, err
	}
	for {
		at, any := k.fleet.Next()
		if len(k.events) > 0 && (!any || k.events[0].at < at) {
			at, any = k.events[0].at, true
		}
		if !any {
			break
		}
		k.now = at
		k.listen(at)
		for len(k.events) > 0 && k.events[0].at <= k.now && k.err == nil {
			e := k.events[0]
			k.events = k.events[1:]
			k.fail(e.do())
		}
		k.begin()
		if k.err != nil {
			return Conversed{}, k.err
		}
	}
	for _, e := range k.engines {
		k.result.InFlight += e.known.InFlight
	}
	if k.result.InFlight != 0 || len(k.turns) > 0 {
		return Conversed{}, fmt.Errorf("bench: simulate: %w: %d turns and %d legs have not ended", load.ErrVoid, len(k.turns), k.result.InFlight)
	}
	return k.came, nil
}

func newConversations(s Conversations) (*conversations, error) {
	k := &conversations{spec: s, plans: migration.NewPlans(), came: Conversed{Moves: map[string]int{}}}
	for _, c := range s.Changes {
		if c.Kind == Add {
			s.Either++
		}
	}
	cfg := config.Config{Health: config.Health{SlowStart: new(time.Duration)}, Models: []config.Model{{Name: "m", Connector: "vllm-nixl-pull"}}}
	if len(s.Uses) > 0 {
		cfg.Migration = config.Migration{Mode: config.MigrationEnabled, Uses: s.Uses}
	}
	for i := range s.Either {
		cfg.Models[0].Engines = append(cfg.Models[0].Engines, config.Engine{Name: strconv.Itoa(i), URL: "http://127.0.0.1:1/" + strconv.Itoa(i)})
	}
	cfg = cfg.WithDefaults()
	f, err := fleet.New(cfg, fleet.Parts{Planner: s.Policy, Log: slog.New(slog.DiscardHandler), Control: new(http.Client)}, new(fleet.Fleet), config.NewSecrets(nil))
	if err != nil {
		return nil, err
	}
	f.Begin(cfg, new(fleet.Fleet))
	k.snapshot, k.model, k.gateway = migration.Snapshot{Config: &cfg, Fleet: f}, f.Models["m"], f.Engines
	k.replay = newReplay(s.Setup)
	k.conversations, k.replay.model, k.lost = k, k.model.Forecast, make([]bool, s.Either)
	for i, e := range k.gateway {
		k.engines[i].work = e.Forecast()
		e.SetCacheSize(fleet.CacheSize{Blocks: s.Costs.Blocks, BlockTokens: sim.BlockTokens})
		e.Reached()
		e.Down.Store(i >= k.spec.Either)
		k.engines[i].known.Usable = i < k.spec.Either
	}
	k.plans.Update(&k.snapshot, fleet.At(0))
	k.look()
	for _, c := range s.Changes {
		k.later(c.At, func() error { return k.change(c.Kind) })
	}
	n := max(1, int(s.Rate*s.Window.Seconds()/float64(s.Turns)))
	if n > 1<<(32-idBits) {
		return nil, fmt.Errorf("bench: simulate: %d conversations; want at most %d: a lower rate or a shorter window", n, 1<<(32-idBits))
	}
	for i, at := range load.Poisson(s.Rate/float64(s.Turns), n, s.Seed) {
		k.later(at, func() error { return k.start(i) })
	}
	return k, nil
}

func (k *conversations) fail(err error) { k.err = cmp.Or(k.err, err) }

// later has something happen at a time, after what is to happen then already.
func (k *conversations) later(at time.Duration, do func() error) {
	k.drawn++
	i, _ := slices.BinarySearchFunc(k.events, event{at: at, nth: k.drawn}, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.nth, b.nth)) })
	k.events = slices.Insert(k.events, i, event{at, k.drawn, do})
}

// idBits are those of a token id that say which token of its conversation it is; the others are of the conversation.
const idBits = 18

// start begins a conversation.
func (k *conversations) start(nth int) error {
	t := &conversation{}
	most := k.spec.Context + k.spec.Turns*(k.spec.New+k.spec.Answer)
	for i := range most {
		t.ids = append(t.ids, uint32(nth<<idBits|i))
	}
	for i := range (most-1)/load.TraceBlock + 1 {
		t.blocks = append(t.blocks, nth<<idBits|i)
	}
	k.all = append(k.all, t)
	return k.next(t, 0)
}

// next begins a turn.
func (k *conversations) next(of *conversation, nth int) error {
	x := &turn{conversation: of, nth: nth, Request: load.Request{At: k.now, Input: k.spec.Context + nth*(k.spec.New+k.spec.Answer), Output: k.spec.Answer, Blocks: of.blocks}}
	x.outcome = k.outcome(x.Request)
	k.turns = append(k.turns, x)
	x.kind = k.became(of)
	return k.ask(x)
}

// became says what has become of the engines that served a conversation's latest turn: as long as one of them is there, nothing has.
func (k *conversations) became(of *conversation) TurnKind {
	kind := Stay
	for i, e := range of.at {
		switch {
		case e == nil:
		case of.runs[i] == k.gateway[e.nth].Generation.Load() && k.gateway[e.nth].Usable():
			return Stay
		case k.lost[e.nth]:
			kind = Lost
		default:
			kind = max(kind, Drained)
		}
	}
	return kind
}

// identity names the conversation up to a turn.
func (x *turn) identity() migration.Identity {
	id := migration.Identity{Estimate: x.outcome.Prompt}
	for i := range x.nth + 1 {
		id.Names = append(id.Names, tokens.Sum{uint64(x.ids[0]), uint64(i) + 1})
	}
	return id
}

// ask gives a turn to engines, or has it wait for a move.
func (k *conversations) ask(x *turn) error {
	now := k.now.Seconds()
	k.replay.look(x.Request, now)
	if !x.looked {
		x.looked = true
		k.replay.model.Arrived(now)
		t := migration.Turn{Model: "m", Asked: "m", Identity: x.identity()}
		cached := func(e *fleet.Engine) int { return k.engines[slices.Index(k.gateway, e)].known.Cached }
		if o := k.plans.Offer(&k.snapshot, k.snapshot.Fleet, k.model, &t, cached, fleet.At(k.now)); o != nil {
			k.view.Forecast.Moves = o.Moves
			choice, err := k.choose(x.Request)
			if k.view.Forecast.Moves = nil; err != nil {
				return err
			}
			if choice.Move > 0 {
				if w, _ := k.plans.Begin(o, choice, fleet.At(k.now), always); w != nil {
					return k.carry(w, x.conversation, x)
				}
			}
		}
	}
	choice, err := k.choose(x.Request)
	if err != nil {
		return err
	}
	x.leg, err = k.send(0, x.Request, x.outcome, choice, k.now, admission.Slot{})
	return err
}

func always() bool { return true }

// ended notes the end of a turn's answer, by its leg.
func (k *conversations) ended(l *leg) {
	x := k.turns[slices.IndexFunc(k.turns, func(x *turn) bool { return x.leg == l })]
	if err := x.outcome.Fault(); err != nil {
		k.fail(err)
		return
	}
	k.turns = slices.DeleteFunc(k.turns, func(o *turn) bool { return o == x })
	if x.nth > 0 {
		k.came.TTFT[x.kind] = append(k.came.TTFT[x.kind], x.outcome.Ttft())
	}
	all := x.outcome.Prompt + x.outcome.Tokens
	t := migration.Turn{Model: "m", Asked: "m", Identity: x.identity(), IDs: x.ids[:all], Prompt: x.outcome.Prompt, Decode: k.gateway[l.engine.nth]}
	if x.at = [2]*engine{l.engine}; l.first != nil {
		x.at[1], t.Prefill = l.first.engine, k.gateway[l.first.engine.nth]
	}
	for i, e := range x.at {
		if e != nil {
			x.runs[i] = k.gateway[e.nth].Generation.Load()
		}
	}
	k.hold(x.conversation, all-1, l.engine)
	if _, due := k.plans.Note(&k.snapshot, &t, fleet.At(k.now)); due {
		k.due = true
	}
	if x.nth+1 < k.spec.Turns {
		k.later(k.now+k.spec.Pause, func() error { return k.next(x.conversation, x.nth+1) })
	}
}

// hold notes that an engine has the first tokens of a conversation.
func (k *conversations) hold(of *conversation, tokens int, e *engine) {
	k.replay.look(load.Request{Input: tokens, Blocks: of.blocks}, k.now.Seconds())
	k.note(k.chain, e)
}

// look has the gateway look for moves that no drain asks for, as often as the gateway looks.
func (k *conversations) look() {
	k.share()
	again, found := k.plans.Look(&k.snapshot, fleet.At(k.now))
	if k.due = k.due || len(found) > 0; again < time.Hour && (len(k.turns) > 0 || k.now < k.spec.Window) {
		k.later(k.now+again, func() error { k.look(); return nil })
	}
}

// share has the gateway know how many requests engines have.
func (k *conversations) share() {
	for i, e := range k.engines {
		k.gateway[i].InFlight.Store(int64(e.known.InFlight))
	}
}

// begin begins the moves that are due.
func (k *conversations) begin() {
	if k.due {
		k.share()
	}
	for more := k.due; more; {
		k.due = false
		var due []*migration.Planned
		var again time.Duration
		due, again, more = k.plans.Due(&k.snapshot, fleet.At(k.now), always)
		for _, w := range due {
			k.fail(k.carry(w, k.all[w.IDs[0]>>idBits], nil))
		}
		if !more && again < time.Hour {
			k.later(k.now+again, func() error { k.due = true; return nil })
		}
	}
	for _, e := range k.plans.Told() {
		k.came.Moves[e.Reason.String()+" "+e.Result.String()]++
	}
}
