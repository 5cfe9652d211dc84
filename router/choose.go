package router

import (
	"math/rand/v2"
	"time"

	"pdrouter/policies"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet/health"
	"pdrouter/router/openai"
)

// role is one of the two lists of a model's engines.
type role uint8

const (
	prefillRole role = iota
	decodeRole
	roles
)

func (r role) String() string { return [...]string{"prefill", "decode"}[r] }

// look is one look at the engines of a model, for a choice among them.
type look struct {
	f      *fleet
	m      *model
	now    time.Time
	not    tried
	glance bool // nothing comes of the choice: no probe is taken
	proven bool // only engines that have answered since they are known
	anyway bool // also those that are out, as there is nobody else
	busy   bool // also those that have asked for no requests now, if there is nobody else: nothing waits for them

	shape openai.Shape // of the request's route
	bare  bool         // a pair was left out as its prefill engine hands nothing off

	probed *engine // the last engine whose half-open circuit waits for this request

	pin     *engine // the only decode engine that has what is asked for; nil if each has
	adapter string  // of the model, which not every engine may have; "" is the model itself
	prompt  *prompt // what engines are thought to have of it; nil if nobody asks

	prefillRoom [4]policies.Engine
	decodeRoom  [4]policies.Engine
}

// Init readies a look for a request. pin is the only decode engine that may serve it, nil if each may; adapter is the one that it names,
// if any.
func (k *look) Init(f *fleet, m *model, shape openai.Shape, pin *engine, adapter string) {
	k.f, k.m, k.shape, k.pin, k.adapter = f, m, shape, pin, adapter
}

// Begin begins a look: at engines but for those, and at those that have asked for no requests now if busy is set and no others are left.
func (k *look) Begin(not tried, busy bool) {
	k.now, k.not, k.anyway, k.busy = time.Now(), not, false, busy
}

// Choose chooses the engines of a request.
func (k *look) Choose(q policies.Request) (policies.Choice, policies.Fleet) {
	if k.m.conn.Traits().Mode == dispatch.Alone {
		q.Unsplittable = policies.Aggregated
	}
	k.bare = false
	c, f := k.choose(k.m.insist(q))
	if c.Reason == policies.NoPair && c.Decode >= 0 && k.bare {
		c.Reason = noHandOff
	}
	return k.insisted(c), f
}

// ChooseDecode chooses another decode engine for a stream that has begun.
func (k *look) ChooseDecode() policies.Choice {
	c, _ := k.choose(policies.Request{Model: k.m.name, Unsplittable: "continued"})
	return c
}

// engines takes the snapshot, and says of either role whether engines are used though they are out.
func (k *look) engines() (f policies.Fleet, prefill, decode bool) {
	f.Prefill, prefill = k.list(k.prefillRoom[:0], k.m.prefill, never)
	f.Decode, decode = k.list(k.decodeRoom[:0], k.m.decode, k.f.health.PanicPercent)
	if k.m.conn.Traits().Handshakes {
		f.Pairable = k.pairable
	}
	k.narrow(&f)
	return f, prefill, decode
}

// never is the panic_percent that is never exceeded.
const never = 100

// list appends one policies.Engine per engine: what a choice may know. If more than percent of those that can be reached are
// out, or it is said anyway, all of them may be used, and it reports that. Engines that have asked for no requests now do not count,
// and are not used by it. Engines that are out for being slow alone may be used where no other is left.
func (k *look) list(dst []policies.Engine, engines []*engine, percent int) ([]policies.Engine, bool) {
	reached, out, left := 0, 0, 0
	slowStart := *k.f.health.SlowStart
	may := func(e *engine) bool { return e.usable() && (!k.proven || e.proven.Load()) }
	for _, e := range engines {
		p := policies.Engine{Name: e.name, InFlight: int(e.inFlight.Load())}
		if may(e) {
			stand := e.vitals.Standing(k.now, slowStart)
			p.Usable, p.Share = stand.Out == health.InUse && !k.not.has(e), stand.Share
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
			p.Cached, p.Backlog = k.Cached(e), int(e.backlog.Load())
		}
		dst = append(dst, p)
	}
	panics := out*100 > percent*reached || k.anyway && out > 0 && k.f.health.PanicPercent < never
	if left > 0 && !panics {
		return dst, false
	}
	for i, e := range engines {
		if !may(e) || k.not.has(e) {
			continue
		}
		switch e.vitals.Standing(k.now, slowStart).Out {
		case health.Answers, health.Streams:
			dst[i].Usable = panics || k.mine(e)
		case health.Slow:
			dst[i].Usable = true
		case health.Overloaded:
			dst[i].Usable = k.busy && left == 0
		}
	}
	return dst, panics
}

// comes reports whether an engine of a role, of which none can take the request now, may do so before long, and after which time as far
// as that is known. An engine whose circuit is open does not count, as it has failed: of such engines it returns when the first is half
// open.
func (k *look) comes(r role) (after time.Duration, comes bool) {
	engines := k.m.decode
	if r == prefillRole {
		engines = k.m.prefill
	}
	var open time.Duration
	for _, e := range engines {
		switch {
		case e.down.Load() && e.refuses.Load(), k.adapter != "" && !e.has(k.adapter):
			continue
		case k.pin != nil && r == decodeRole:
			if e != k.pin {
				continue
			}
		case e.draining.Load():
			continue
		}
		stand := e.vitals.Standing(k.now, *k.f.health.SlowStart)
		var d time.Duration
		switch {
		case e.down.Load():
		case stand.Circuit == health.Open:
			if d = e.vitals.OpenFor(k.now); open == 0 || d < open {
				open = d
			}
			continue
		case stand.Out == health.Overloaded:
			d = e.vitals.RetryAfter(k.now)
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
func (k *look) pairable(p, d int) bool {
	c := k.m.couple(p, d)
	if !c.prefill.handing.lets(k.shape, k.now) {
		k.bare = true
		return false
	}
	return k.f.agree(c) == nil && !k.f.doubtful(c) && (k.anyway || !c.broken.Load())
}

// choose asks the planner over a snapshot of the fleet, and again over all that can be reached if nobody else is left. Where
// what it chose is to be probed, this request is the probe.
func (k *look) choose(q policies.Request) (policies.Choice, policies.Fleet) {
	for range 4 {
		f, prefill, decode := k.engines()
		c := k.f.planner.Choose(q, f, policies.Draw{Turn: k.m.turn.Add(1), Random: rand.Uint64()})
		if c.Decode < 0 && !k.anyway {
			k.anyway = true
			continue
		}
		if k.glance || c.Decode < 0 {
			return c, f
		}
		c = k.warmer(q, f, c)
		k.f.panics(k.m, prefillRole, prefill && c.Split)
		k.f.panics(k.m, decodeRole, decode)
		if k.take(c, prefill, decode) {
			return c, f
		}
	}
	f, _, _ := k.engines() // others were always faster: they have the probes
	return k.f.planner.Choose(q, f, policies.Draw{Turn: k.m.turn.Add(1), Random: rand.Uint64()}), f
}

// warmer is a choice of engines that have shaken hands where those chosen have not, so that a request waits for a handshake
// only if no other pair is left. The pair that is passed over shakes hands all the same: every pair does, without a request.
func (k *look) warmer(q policies.Request, f policies.Fleet, c policies.Choice) policies.Choice {
	if !c.Split || f.Pairable == nil || k.warm(c.Prefill, c.Decode) {
		return c
	}
	f.Pairable = func(p, d int) bool { return k.warm(p, d) && k.pairable(p, d) }
	if w := k.f.planner.Choose(q, f, policies.Draw{Turn: k.m.turn.Add(1), Random: rand.Uint64()}); w.Split {
		return w
	}
	return c
}

// warm reports whether two engines, as they run now, have shaken hands.
func (k *look) warm(p, d int) bool {
	pair, err := k.f.runsOf(k.m.couple(p, d))
	return err == nil && k.f.handshakes.Ready(pair)
}

// take makes this request the probe of each engine chosen that is to be probed. It reports false if another request has become
// that since the snapshot. Engines that are used anyway are not asked.
func (k *look) take(c policies.Choice, prefill, decode bool) bool {
	rules := engineRules(k.f.health)
	if !decode && !k.takes(k.m.decode[c.Decode], rules) {
		return false
	}
	return prefill || !c.Split || k.takes(k.m.prefill[c.Prefill], rules)
}

// takes is take for one engine. The request that is its probe may be given to it again.
func (k *look) takes(e *engine, rules health.BreakerRules) bool {
	if k.mine(e) {
		return true
	}
	may, probe := e.vitals.Take(k.now, rules)
	if probe {
		k.probed = e
	}
	return may
}

// mine reports whether the request is the probe that the engine's half-open circuit waits for.
func (k *look) mine(e *engine) bool {
	return k.probed == e && e.vitals.RetryAfter(k.now) == 0 && e.vitals.Standing(k.now, 0).Circuit == health.HalfOpen
}

// panics notes whether a role's engines are used though they are out.
func (f *fleet) panics(m *model, role role, now bool) {
	flag := &m.panics[role]
	if flag.Load() == now || flag.Swap(now) == now {
		return
	}
	if now {
		f.log.Warn("too many engines are out; all are used that can be reached", "model", m.name, "role", role.String())
	} else {
		f.log.Info("enough engines are in use", "model", m.name, "role", role.String())
	}
}

// serves reports whether a request for the model that is worth splitting would be given to engines, as far as is known: by
// the policy, and by engines that have answered.
func (f *fleet) serves(m *model) bool {
	q := policies.Request{Model: m.name, PromptTokens: 1 << 30}
	if m.conn.Traits().Mode == dispatch.Alone {
		q.Unsplittable = policies.Aggregated
	}
	k := &look{f: f, m: m, now: time.Now(), glance: true, proven: true, busy: true}
	c, _ := k.choose(q)
	return c.Decode >= 0
}

// glance says what would be chosen now for a request that does not come yet.
func (f *fleet) glance(m *model, q policies.Request) policies.Choice {
	k := &look{f: f, m: m, now: time.Now(), glance: true, busy: true}
	c, _ := k.choose(k.m.insist(q))
	return c
}

// insist makes a question to the planner one whose answer is two engines, whatever the request is.
func (m *model) insist(q policies.Request) policies.Request {
	if m.conn.Traits().RequiresSplit {
		q.PromptTokens, q.Unsplittable = 1<<30, ""
	}
	return q
}

// insisted takes back a choice of decode alone where decode does not serve alone.
func (k *look) insisted(c policies.Choice) policies.Choice {
	if k.m.conn.Traits().RequiresSplit && !c.Split && c.Decode >= 0 {
		c.Decode, c.Reason = -1, policies.NoPrefill
	}
	return c
}
