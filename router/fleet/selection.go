package fleet

import (
	"math/rand/v2"
	"time"

	"pdrouter/policies"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet/health"
	"pdrouter/router/openai"
)

// Role is one of the two lists of a model's engines.
type Role uint8

const (
	Prefill Role = iota
	Decode
	roleCount
)

func (r Role) String() string { return [...]string{"prefill", "decode"}[r] }

// Selection chooses engines for one request, as often as the request needs. Init readies it; Begin takes the time and says what is left
// out; Choose and ChooseDecode choose. It belongs to one goroutine at a time.
type Selection struct {
	f             *Fleet
	m             *Model
	Now           time.Time // of the choice
	excluded      Excluded
	dryRun        bool // no request follows, so no probe is taken
	provenOnly    bool // only engines that have answered since they are known
	panicMode     bool // also ejected engines, as no other is left
	overloadedToo bool // also engines that have asked for a pause, if no other is left
	noPrefill     bool // no prefill engine
	fullShare     bool // a slow start does not count

	shape     openai.Shape // of the request's route
	noHandOff bool         // a pair was left out because its prefill engine hands nothing off
	asked     struct {     // the last answer of pairable in this view: a policy counts its candidates before it takes one of them
		pair *Pair
		may  bool
	}

	probed *Engine // the last engine whose half-open circuit waits for this request

	pin     *Engine       // the only decode engine that may serve the request; nil if each may
	adapter string        // of the model, which not every engine may have; "" is the model itself
	prompt  *prompt       // which engines have its prefix, by the index; nil if the policy does not use it
	session uint64        // a hash of what names its session
	tokens  int           // of its prompt
	drawn   policies.Draw // of the last choice; before the first, its Random is what SetRandom was told
	shadow  *Shadow       // what the second policy would have chosen

	prefillRoom [4]policies.Engine
	decodeRoom  [4]policies.Engine
}

// Init readies a Selection for a request. pin is the only decode engine that may serve it, nil if each may; adapter is the one that the
// request names, if any; session is a hash of what names its session, 0 if nothing does.
func (k *Selection) Init(f *Fleet, m *Model, shape openai.Shape, pin *Engine, adapter string, session uint64) {
	k.f, k.m, k.shape, k.pin, k.adapter, k.session = f, m, shape, pin, adapter, session
}

// SetRandom has the first choice go by a chance that was drawn before, as RoomFor.Random; 0: by one of its own, as all others.
func (k *Selection) SetRandom(random uint64) { k.drawn.Random = random }

// Begin begins a choice among all engines but the excluded. With overloadedToo it may be one that has asked for no requests now, if no
// other is left.
func (k *Selection) Begin(excluded Excluded, overloadedToo bool) {
	k.Now, k.excluded, k.panicMode, k.overloadedToo, k.noPrefill = time.Now(), excluded, false, overloadedToo, false
}

// WithoutPrefill leaves all prefill engines out of the choice that has begun. Engines of either role may still decode.
func (k *Selection) WithoutPrefill() { k.noPrefill = true }

// Choose chooses the engines of a request.
func (k *Selection) Choose(q policies.Request) (policies.Choice, policies.Fleet) {
	q = k.complete(q)
	k.tokens, k.noHandOff = q.PromptTokens, false
	c, f := k.chooseInRounds(q)
	if c.Reason == policies.NoPair && c.Decode >= 0 && k.noHandOff {
		c.Reason = NoHandOff
	}
	c = k.refuseAlone(c)
	if k.f.shadow != nil && !k.dryRun {
		k.shadow = k.askShadow(q, f, c)
	}
	return c, f
}

// complete adds to a request what the model and the selection know of it.
func (k *Selection) complete(q policies.Request) policies.Request {
	q.Session, q.Pinned = k.session, k.pin != nil
	return k.m.requireSplit(k.m.aggregated(q))
}

// ChooseDecode chooses another decode engine for a stream that has begun.
func (k *Selection) ChooseDecode() policies.Choice {
	c, _ := k.chooseInRounds(policies.Request{Model: k.m.Name, Unsplittable: "continued", Session: k.session, PromptTokens: k.tokens})
	return c
}

// view is what the policy may know of the engines now. It says of either role whether engines are used though they are out.
func (k *Selection) view() (f policies.Fleet, prefill, decode bool) {
	k.asked.pair = nil
	f.Prefill, prefill = k.list(k.prefillRoom[:0], k.m.Prefill, never)
	f.Decode, decode = k.list(k.decodeRoom[:0], k.m.Decode, k.f.health.PanicPercent)
	if k.m.Connector.Traits().Handshakes {
		f.Pairable = k.pairable
	}
	if k.f.troubled != nil {
		if troubled := k.f.troubled(); troubled != nil {
			f.Troubled = func(p, d int) bool { return troubled(k.m.Prefill[p].Name, k.m.Decode[d].Name) }
		}
	}
	for i := range f.Prefill {
		f.Prefill[i].Usable = f.Prefill[i].Usable && !k.noPrefill
	}
	f.Forecast = k.forecast()
	k.filter(&f) // changes nothing unless one engine is pinned or an adapter is named
	return f, prefill, decode
}

// never is the panic_percent that is never exceeded.
const never = 100

// list appends one policies.Engine per engine: what a choice may know. If more than percent of those that can be reached are
// out, or in panic mode, all of them may be used, and it reports that. Engines that have asked for no requests now do not count,
// and are not used by it. Engines that are out for being slow alone may be used where no other is left.
func (k *Selection) list(dst []policies.Engine, engines []*Engine, percent int) ([]policies.Engine, bool) {
	reached, out, left := 0, 0, 0
	slowStart := *k.f.health.SlowStart
	may := func(e *Engine) bool { return e.Usable() && (!k.provenOnly || e.proven.Load()) }
	for _, e := range engines {
		p := policies.Engine{Name: e.Name, InFlight: e.Requests(k.Now), Place: e.placement.Load()}
		if may(e) {
			stand := e.Health.Standing(k.Now, slowStart)
			p.Usable, p.Share = stand.Out == health.InUse && !k.excluded.Has(e), stand.Share
			if k.fullShare {
				p.Share = 1
			}
			if p.Usable {
				left++
			}
			if stand.Out != health.Overloaded {
				reached++
				if stand.Out != health.InUse || stand.Circuit != health.Closed {
					out++
				}
			}
		}
		if k.prompt != nil {
			p.Cached, p.Backlog = k.Cached(e), e.backlog(k.Now)
		}
		if k.adapter != "" && k.m.usesAdapters {
			p.Adapter = e.AdapterSlots.Load().state(k.adapter)
		}
		dst = append(dst, p)
	}
	panics := out*100 > percent*reached || k.panicMode && out > 0 && k.f.health.PanicPercent < never
	if left > 0 && !panics {
		return dst, false
	}
	for i, e := range engines {
		if !may(e) || k.excluded.Has(e) {
			continue
		}
		switch e.Health.Standing(k.Now, slowStart).Out {
		case health.Answers, health.Streams:
			probe := k.isProbe(e)
			dst[i].Usable, dst[i].Out = panics || probe, !probe
		case health.Slow:
			dst[i].Usable = true
		case health.Overloaded:
			dst[i].Usable = k.overloadedToo && left == 0
		}
	}
	return dst, panics
}

// ComesBack is called when no engine of a role can take the request now. It reports whether one may do so soon, and after which time if that
// is known. Engines with an open circuit do not count. If there are only such engines, it returns when the first becomes half open.
func (k *Selection) ComesBack(r Role) (after time.Duration, comes bool) {
	engines := k.m.Decode
	if r == Prefill {
		engines = k.m.Prefill
	}
	var open time.Duration
	for _, e := range engines {
		switch {
		case e.Down.Load() && e.refuses.Load(), k.adapter != "" && !e.has(k.adapter):
			continue
		case k.pin != nil && r == Decode:
			if e != k.pin {
				continue
			}
		case e.Draining.Load():
			continue
		}
		stand := e.Health.Standing(k.Now, *k.f.health.SlowStart)
		var d time.Duration
		switch {
		case e.Down.Load():
		case stand.Circuit == health.Open:
			if d = e.Health.OpenFor(k.Now); open == 0 || d < open {
				open = d
			}
			continue
		case stand.Out == health.Overloaded:
			d = e.Health.RetryAfter(k.Now)
		case stand.Out == health.InUse: // something else is missing
			continue
		}
		if !comes || d < after {
			after = d
		}
		comes = true
	}
	if !comes {
		return open, false
	}
	return after, true
}

// pairable says whether a request may be split between two engines.
func (k *Selection) pairable(p, d int) bool {
	c := k.m.PairAt(p, d)
	if c != k.asked.pair {
		k.asked.pair, k.asked.may = c, k.splits(c)
	}
	return k.asked.may
}

func (k *Selection) splits(c *Pair) bool {
	if c.Prefill == c.Decode { // of either role: it has nothing to hand to itself
		return false
	}
	if !c.Prefill.HandOff.lets(k.shape, k.Now) {
		k.noHandOff = true
		return false
	}
	return k.f.Compatible(c) == nil && !k.f.Doubtful(c) && (k.panicMode || !c.broken.Load())
}

// chooseInRounds asks the policy with a view of the fleet, and again with a new view in two cases: no engine is left, then with all that can
// be reached (panicMode); or a chosen engine needs a probe, and another request became it. If none did, this request is the probe.
func (k *Selection) chooseInRounds(q policies.Request) (policies.Choice, policies.Fleet) {
	for range 4 {
		f, prefill, decode := k.view()
		c := k.askPolicy(q, f)
		if c.Decode < 0 && !k.panicMode {
			k.panicMode = true
			continue
		}
		if k.dryRun || c.Decode < 0 {
			return c, f
		}
		c = k.preferWarm(f, c, func(f policies.Fleet) policies.Choice { return k.askPolicy(q, f) })
		k.f.notePanicMode(k.m, Prefill, prefill && c.Split)
		k.f.notePanicMode(k.m, Decode, decode)
		if k.takeProbes(c, prefill, decode) {
			return c, f
		}
	}
	f, _, _ := k.view() // others were always faster: they have the probes
	return k.askPolicy(q, f), f
}

// askPolicy asks the policy once. A Choice without a decode engine (Decode below 0) says in Reason what is missing; one that is not Split is of
// decode alone; Prefill and Decode are indices of the view's engines.
func (k *Selection) askPolicy(q policies.Request, f policies.Fleet) policies.Choice {
	random := rand.Uint64()
	if k.drawn.Turn == 0 && k.drawn.Random != 0 {
		random = k.drawn.Random
	}
	k.drawn = policies.Draw{Turn: k.m.turn.Add(1), Random: random}
	return k.f.planner.Choose(q, f, k.drawn)
}

// preferWarm replaces a pair that has not shaken hands by one that has, if ask finds one in a view of these pairs alone. So a request waits for a handshake only if no other pair is left.
// The pair that was passed over shakes hands in the background, as every pair does.
func (k *Selection) preferWarm(f policies.Fleet, c policies.Choice, ask func(policies.Fleet) policies.Choice) policies.Choice {
	if !c.Split || f.Pairable == nil || k.warm(c.Prefill, c.Decode) {
		return c
	}
	f.Pairable = func(p, d int) bool { return k.warm(p, d) && k.pairable(p, d) }
	if w := ask(f); w.Split {
		return w
	}
	return c
}

// warm reports whether two engines, as they run now, have shaken hands.
func (k *Selection) warm(p, d int) bool {
	pair, err := k.f.Runs(k.m.PairAt(p, d))
	return err == nil && k.f.handshakes.Ready(pair)
}

// takeProbes makes this request the probe of each chosen engine that needs one. It reports false if another request became the probe since
// the view. It skips engines that are used in panic mode.
func (k *Selection) takeProbes(c policies.Choice, prefill, decode bool) bool {
	rules := engineRules(k.f.health)
	if !decode && !k.takeProbe(k.m.Decode[c.Decode], rules) {
		return false
	}
	return prefill || !c.Split || k.takeProbe(k.m.Prefill[c.Prefill], rules)
}

// takeProbe is takeProbes for one engine. The request that is its probe may be given to it again.
func (k *Selection) takeProbe(e *Engine, rules health.BreakerRules) bool {
	if k.isProbe(e) {
		return true
	}
	may, probe := e.Health.Take(k.Now, rules)
	if probe {
		k.probed = e
	}
	return may
}

// isProbe reports whether the request is the probe that the engine's half-open circuit waits for.
func (k *Selection) isProbe(e *Engine) bool {
	return k.probed == e && e.Health.RetryAfter(k.Now) == 0 && e.Health.Standing(k.Now, 0).Circuit == health.HalfOpen
}

// notePanicMode notes, and logs if it changes, whether a role's engines are used though they are out.
func (f *Fleet) notePanicMode(m *Model, role Role, now bool) {
	flag := &m.panicMode[role]
	if flag.Load() == now || flag.Swap(now) == now {
		return
	}
	if now {
		f.log.Warn("too many engines are out; all are used that can be reached", "model", m.Name, "role", role.String())
	} else {
		f.log.Info("enough engines are in use", "model", m.Name, "role", role.String())
	}
}

// Serves reports whether a request for the model that is worth splitting would be given to engines, as far as is known: by
// the policy, and by engines that have answered.
func (f *Fleet) Serves(m *Model) bool {
	q := m.aggregated(policies.Request{Model: m.Name, AnyLength: true})
	k := &Selection{f: f, m: m, Now: time.Now(), dryRun: true, provenOnly: true, overloadedToo: true}
	c, _ := k.chooseInRounds(q)
	return c.Decode >= 0
}

// DryRun says what would be chosen now for a request that does not come yet.
func (f *Fleet) DryRun(m *Model, q policies.Request) policies.Choice {
	k := &Selection{f: f, m: m, Now: time.Now(), dryRun: true, overloadedToo: true}
	c, _ := k.chooseInRounds(k.m.requireSplit(q))
	return c
}

// aggregated marks requests of a model whose engines hand nothing off.
func (m *Model) aggregated(q policies.Request) policies.Request {
	if m.Connector.Traits().Mode == dispatch.Alone {
		q.Unsplittable = policies.Aggregated
	}
	return q
}

// requireSplit makes the policy choose two engines where decode does not serve alone, whatever the request is.
func (m *Model) requireSplit(q policies.Request) policies.Request {
	if m.Connector.Traits().RequiresSplit {
		q.MustSplit, q.Unsplittable = true, ""
	}
	return q
}

// refuseAlone makes a choice of decode alone one without engines where decode does not serve alone.
func (k *Selection) refuseAlone(c policies.Choice) policies.Choice {
	if k.m.Connector.Traits().RequiresSplit && !c.Split && c.Decode >= 0 {
		c.Decode, c.Reason = -1, policies.NoPrefill
	}
	return c
}
