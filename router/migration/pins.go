package migration

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/reclaim"
)

// pin is what a decode engine pins of an answer (vLLM's bidirectional_kv_xfer), so that another engine may read it: a move without a request to its
// source. Its blocks are of the tokens of its turn, which the gateway knows, so a move of the first of them is as exact as any other.
type pin struct {
	held    *reclaim.Pinned
	at      place
	tokens  int
	turn    string        // by which its turn claims it; "" afterwards
	c       *conversation // of that turn, then
	kept    time.Time     // since then
	expires time.Time     // it is given up then
}

// PinEnd says what became of what an engine had pinned.
type PinEnd uint8

const (
	PinRead     PinEnd = iota // a move has read it
	PinUnread                 // a move was to read it, and has not
	PinReplaced               // its conversation has gone on, or is not kept any more
	PinUnkept                 // the conversation of its turn is not kept
	PinExpired                // nobody has read it for migration.pinned_for
	PinOver                   // there was no room for it within migration.pinned_share
	PinGone                   // its engine restarted, or is not in the configuration any more
	PinStopped                // the gateway stops, or conversations are not moved any more
	PinEnds                   // how many there are
)

func (e PinEnd) String() string {
	return [...]string{"read", "not_read", "replaced", "not_kept", "expired", "no_room", "engine_gone", "stopped"}[e]
}

// pins is the ledger of what decode engines pin for this gateway. Each pin ends once: a move takes it, or it is given up and is to be freed. It is not
// safe for concurrent use.
type pins struct {
	turns   map[string]*pin          // that no turn has claimed
	of      map[*fleet.Engine][]*pin // the oldest first
	doubts  map[*fleet.Engine]*doubt // engines of which a move has failed to read
	freed   []*reclaim.Pinned        // that are given up, and not freed
	ended   [PinEnds]uint64
	stopped bool
}

// doubt is that what an engine pins can be read.
type doubt struct {
	until time.Time
	pause time.Duration // that it lasts; twice as long each time
}

const (
	// claimWithin is how long the turn of an answer may take to its end: it comes right after the answer.
	claimWithin = 5 * time.Second
	// After a failed read an engine's pins are not read for this long at first, and at most.
	firstDoubt, longestDoubt = time.Minute, time.Hour
	// Params that are kept have at most so many bytes, and so many more for each block: an engine writes what it likes there.
	usualParams, mostOfBlock = 4 << 10, 16
)

func newPins() pins {
	return pins{turns: map[string]*pin{}, of: map[*fleet.Engine][]*pin{}, doubts: map[*fleet.Engine]*doubt{}}
}

// keep enters what an engine pins for the answer of a turn, in place of what has been pinned there for longest as far as there is no room. It
// reports false if it is not to be kept.
func (l *pins) keep(s *Snapshot, turn string, e *fleet.Engine, held *reclaim.Pinned, now time.Time) bool {
	limits := &s.Config.Migration
	model := s.Fleet.Models[e.Model]
	room := roomFor(limits, e)
	switch {
	case l.stopped, limits.Mode != config.MigrationEnabled, limits.PinnedFor <= 0, model == nil, s.Fleet.Engine(e.Name) != e, !held.Frees(),
		!sameRun(held, e), held.Tokens() < limits.MinTokens, l.doubted(e, now):
		return false
	case held.Blocks() == 0, held.Blocks() != blocksOf(held.Tokens(), blockOf(s.Fleet, model)): // of several kinds of caches, or of a size that is not known
		return false
	case len(held.Params()) > usualParams+mostOfBlock*held.Blocks():
		return false
	case held.Tokens() > room:
		l.ended[PinOver]++
		return false
	}
	l.shrink(e, room-held.Tokens())
	p := &pin{held: held, at: place{e, s.Fleet.RunOf(e)}, tokens: held.Tokens(), turn: turn, kept: now, expires: now.Add(min(claimWithin, limits.PinnedFor))}
	l.of[e] = append(l.of[e], p)
	l.turns[turn] = p
	return true
}

// roomFor is how many tokens an engine may pin.
func roomFor(limits *config.Migration, e *fleet.Engine) int {
	return int(limits.PinnedShare * float64(e.CacheSize().Tokens()))
}

// shrink gives up what has been pinned for longest at an engine, as far as it is more than there is room for.
func (l *pins) shrink(e *fleet.Engine, room int) {
	used := 0
	for _, p := range l.of[e] {
		used += p.tokens
	}
	for used > room && len(l.of[e]) > 0 {
		oldest := l.of[e][0]
		used -= oldest.tokens
		l.give(oldest, PinOver)
	}
}

// sameRun reports whether an engine has not restarted since its answer, as far as it is known which run serves.
func sameRun(held *reclaim.Pinned, e *fleet.Engine) bool {
	run := e.ChannelReport().Run
	return run == "" || run == held.Run()
}

func blocksOf(tokens, block int) int { return (tokens + block - 1) / block }

// claim gives a conversation what is pinned for its latest turn, if anything is.
func (l *pins) claim(turn string, c *conversation, pinnedFor time.Duration) {
	p := l.turns[turn]
	if p == nil {
		return
	}
	delete(l.turns, turn)
	p.turn = ""
	if p.at != c.at[fleet.Decode] || p.tokens > len(c.ids) { // with another run its blocks are gone
		l.give(p, PinUnkept)
		return
	}
	p.c, p.expires = c, p.kept.Add(pinnedFor)
	c.pin = p
}

// remove takes a pin out of the ledger.
func (l *pins) remove(p *pin) {
	if l.turns[p.turn] == p {
		delete(l.turns, p.turn)
	}
	if p.c != nil {
		p.c.pin = nil
	}
	e := p.at.engine
	if l.of[e] = slices.DeleteFunc(l.of[e], func(o *pin) bool { return o == p }); len(l.of[e]) == 0 {
		delete(l.of, e)
	}
}

// give gives up a pin: it is to be freed.
func (l *pins) give(p *pin, why PinEnd) {
	l.remove(p)
	l.ended[why]++
	l.freed = append(l.freed, p.held)
}

// take takes a pin for a move of the first tokens of its conversation to another engine. It returns nil if that cannot read them. Whoever takes it sees
// that it is read or freed.
func (l *pins) take(c *conversation, from *fleet.Engine, tokens, block int, now time.Time) *Pin {
	if !l.serves(c, from, tokens, now) {
		return nil
	}
	p := c.pin
	params, ok := connector.FirstBlocks(p.held.Params(), tokens/block, tokens)
	if !ok || p.held.Blocks() != blocksOf(p.tokens, block) { // blocks are known to be of another size than when it was kept
		l.give(p, PinUnkept)
		return nil
	}
	l.remove(p)
	return &Pin{Params: params, tokens: tokens}
}

// serves reports whether a move of the first tokens of a conversation off an engine can read what that pins.
func (l *pins) serves(c *conversation, from *fleet.Engine, tokens int, now time.Time) bool {
	return c.pin != nil && c.pin.at.engine == from && c.pin.tokens >= tokens && now.Before(c.pin.expires) && !l.doubted(from, now)
}

// read notes what became of a move that was to read what an engine pins.
func (l *pins) read(from *fleet.Engine, result Result, now time.Time) {
	if result == Moved {
		l.ended[PinRead]++
		delete(l.doubts, from)
		return
	}
	l.ended[PinUnread]++
	if result != Failed {
		return
	}
	d := l.doubts[from]
	if d == nil {
		d = &doubt{pause: firstDoubt / 2}
		l.doubts[from] = d
	}
	d.pause = min(2*d.pause, longestDoubt)
	d.until = now.Add(d.pause)
}

func (l *pins) doubted(e *fleet.Engine, now time.Time) bool {
	d := l.doubts[e]
	return d != nil && now.Before(d.until)
}

// sweep gives up what is not to be pinned any longer, and returns when to look again.
func (l *pins) sweep(s *Snapshot, now time.Time) (again time.Duration) {
	again = time.Hour
	limits := &s.Config.Migration
	off := l.stopped || limits.Mode != config.MigrationEnabled || limits.PinnedFor <= 0
	for _, e := range slices.SortedFunc(maps.Keys(l.of), func(a, b *fleet.Engine) int { return cmp.Compare(a.Name, b.Name) }) {
		for _, p := range slices.Clone(l.of[e]) {
			if shorter := p.kept.Add(limits.PinnedFor); shorter.Before(p.expires) { // by a change of the configuration
				p.expires = shorter
			}
			switch {
			case s.Fleet.Engine(e.Name) != e, p.at.run != s.Fleet.RunOf(e):
				l.give(p, PinGone)
			case off:
				l.give(p, PinStopped)
			case now.Before(p.expires):
				again = min(again, p.expires.Sub(now))
			case p.c == nil:
				l.give(p, PinUnkept)
			default:
				l.give(p, PinExpired)
			}
		}
		l.shrink(e, roomFor(limits, e)) // the share may have become smaller
	}
	maps.DeleteFunc(l.doubts, func(e *fleet.Engine, _ *doubt) bool { return s.Fleet.Engine(e.Name) != e })
	return again
}

// Pin is what a move reads of what its source pins.
type Pin struct {
	Params []byte // kv_transfer_params of the target's request
	tokens int    // that they are of
}

// Keep keeps what an engine pins for the answer of a turn, which Note is to name. It reports false if it is not to be kept, so that it can be freed.
func (p *Plans) Keep(s *Snapshot, turn string, e *fleet.Engine, held *reclaim.Pinned, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pins.keep(s, turn, e, held, now)
}

// Sweep gives up what is not to be pinned any longer, and returns when to do so again. With stops that is all of it, from now on.
func (p *Plans) Sweep(s *Snapshot, stops bool, now time.Time) (again time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pins.stopped = p.pins.stopped || stops
	return p.pins.sweep(s, now)
}

// Freed returns what was given up since it was called last, and is to be freed.
func (p *Plans) Freed() []*reclaim.Pinned {
	p.mu.Lock()
	defer p.mu.Unlock()
	freed := p.pins.freed
	p.pins.freed = nil
	return freed
}

// blocks are how many blocks engines pin for this gateway, those that pin any.
func (l *pins) blocks() map[string]int {
	out := make(map[string]int, len(l.of))
	for e, all := range l.of {
		for _, p := range all {
			out[e.Name] += p.held.Blocks()
		}
	}
	return out
}
