package router

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"pdrouter/internal/background"
	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/monitor"
	"pdrouter/router/openai"
	"pdrouter/router/openai/jsonscan"
)

// Reclaimer is the gateway's own agent among those of stock engines. It must be safe for concurrent use.
type Reclaimer interface {
	// Notify sends a message so many times to the agent of each of these ranks, as their own peer would. It may block until
	// ctx ends. Nil means that the messages are on their way.
	Notify(ctx context.Context, to []metadata.Record, message string, times int) error
	// Forget drops what is known of an engine, whose run is over. It must not block.
	Forget(engine string)
}

// reclaimSnapshot is what the KV that a request has left is seen to with. It is never changed.
type reclaimSnapshot struct {
	fleet    *fleet.Fleet
	limits   config.Limits
	timeouts config.Timeouts
	agent    Reclaimer     // nil: no engine can be told anything
	stock    monitor.Stock // asks engines which run they are; nil: they are not asked
	// handOver sends a whole request of the gateway's own to the two engines of a pair, and returns when decode has answered it.
	handOver func(ctx context.Context, c *fleet.Pair) error
}

// reclaimer sees to KV that ended requests left with stock engines. It is safe for concurrent use. What it does for a request goes by
// the snapshot that the request was admitted with.
type reclaimer struct {
	log     *slog.Logger
	tasks   *background.Tasks
	pairs   *fleet.Handshakes
	monitor *monitor.Monitor
	leaks   *leaks
}

// newReclaimer returns one that counts with leaks what cannot be freed.
func newReclaimer(log *slog.Logger, tasks *background.Tasks, pairs *fleet.Handshakes, m *monitor.Monitor, l *leaks) *reclaimer {
	return &reclaimer{log: log, tasks: tasks, pairs: pairs, monitor: m, leaks: l}
}

// job is a request that is over and may have left KV behind, with all that is needed to see to that. Nobody else
// changes it. Whoever sees to it holds the body.
type job struct {
	s               *reclaimSnapshot // what the request was admitted with
	h               connector.Handoff
	b               *openai.Body // whose bytes the requests again and taking have; nil if there are none
	conn            connector.Connector
	model           string
	prefill, decode *fleet.Engine
	run             string       // decode's, when the request ended; "" if it is not known
	closed          time.Time    // when the decode leg had ended
	leg             *leg.Leg     // decode's, which is open still; nil if it was ended with the request
	inTurn          bool         // decode begins with the request before those that come later
	lost            bool         // prefill's leg has ended without a usable answer: it may run there still, or be held
	parted          bool         // and prefill has shown that it knows that
	bare            bool         // prefill has answered and handed nothing off: it never writes what decode waits for
	again           *leg.Request // prefill's request; nil if it is not to be asked again
	taking          *leg.Request // decode's, of one token, under the same id; nil if none is to be sent
	tokens          int          // of the prompt, estimated
	first           []byte       // what prefill has answered already; nil if it has not
	probe           bool         // it is a handshake: no request is sent for its sake while others fail
	counted         bool         // KV of the request was counted as left already: with one engine or two, it is one ending
}

// certainty is how sure it is that something is held.
type certainty uint8

const (
	certain  certainty = iota
	possible           // it may be: if it cannot be given back, it is counted as such
	unlikely           // most likely it is not: then nothing is counted
)

// newJob returns what a hand-over between these engines may leave behind.
func newJob(s *reclaimSnapshot, h *connector.Handoff, conn connector.Connector, model string, p, d *fleet.Engine) *job {
	return &job{s: s, h: *h, conn: conn, model: model, prefill: p, decode: d, run: d.ChannelReport().Run, closed: time.Now()}
}

// settle sees to KV that decode holds for a request which is over, as prefill has yet to write it. It takes its time.
//
// If prefill has answered before, it may have lost what it was to write, and decode's registration with it: that it is asked
// again frees decode's blocks if the registration is still there, and nobody can tell whether it is.
func (r *reclaimer) settle(ctx context.Context, m *job) {
	entry := m.decode.Origin.Entry
	o := decodeHeld{agent: m.s.agent != nil, channel: m.run != "", named: entry.PlainRequestIDs, finished: m.first != nil}
	o.barred = m.first != nil && m.plainlyNamed()
	plain := m.first == nil && m.prefill.Origin.Entry.PlainRequestIDs
	o.lost = plain && m.lost
	o.barred = o.barred || o.lost && !m.parted
	end := "prefill_lost"
	if m.bare {
		end, o.run = "nothing_handed_off", runOver
	}
	defer m.part()
	o.open = m.leg != nil && m.inTurn
	var look looking
	since := m.closed
	for pause := 100 * time.Millisecond; ; {
		if c := m.prefill.Endpoint.Load(); c != nil && c.EngineID != m.h.Endpoint.EngineID {
			end, o.run = "prefill_restarted", runOver
		}
		o.over, o.down = ctx.Err() != nil, m.prefill.Down.Load()
		s, why := o.next()
		if o.open && !s.leavesOpen() || o.run == runLives && s != stepRest && s != stepQuiet {
			o.open = false
			m.part()
		}
		switch s {
		case stepNothing:
			if m.first != nil {
				r.leak(ctx, m, m.decode, leakPossible)
				r.giveBackFirst(ctx, m, possible)
			} else {
				r.leaks.reclaimed(end, "asked_again")
			}
			if m.h.KVParams != nil { // decode's leg may have ended before it had registered, and then prefill waits for it
				r.giveBack(ctx, m, prefillHeld{answered: true, asked: true}, unlikely)
			}
			return
		case stepStrand:
			r.leak(ctx, m, m.decode, why)
			if o.run == runLives {
				r.giveBackFirst(ctx, m, possible)
			}
			return
		case stepAskAgain:
			o.tried = true
			switch r.askAgain(ctx, m) {
			case dispatch.EvPrefillUsable, dispatch.EvPrefillRejected: // what prefill rejects, decode has rejected as well
				o.written = true
			case dispatch.EvPrefillMoved:
				end, o.run, since = "prefill_restarted", runOver, time.Now()
			case dispatch.EvPrefillRefused:
			default:
				if o.lost = plain && m.again != nil; o.lost { // as the first was
					o.run, o.barred, m.closed = runUnknown, !m.parted, time.Now()
				}
			}
		case stepClear:
			if o.lost = !r.cleared(ctx, m); o.lost { // it may have come to its end meanwhile
				o.run = look.at(ctx, m.s, m.prefill, m.h.Endpoint)
				since, o.barred = time.Now(), o.run == runLives
			}
		case stepLook:
			o.run = look.at(ctx, m.s, m.prefill, m.h.Endpoint)
			switch {
			case o.run == runOver:
				since = time.Now()
				continue
			case o.run == runLives && o.lost:
				continue
			}
			sleep(ctx, pause)
			pause, o.tried = min(2*pause, time.Second), false
		case stepRest:
			if o.finished = r.rests(ctx, m); !o.finished {
				o.run = look.at(ctx, m.s, m.prefill, m.h.Endpoint)
				sleep(ctx, time.Second)
			}
		case stepQuiet:
			if !r.quiet(ctx, m) {
				o.run = look.at(ctx, m.s, m.prefill, m.h.Endpoint)
				since = time.Now()
				continue
			}
			if m.leg.TookAll() { // it was only slow
				return
			}
			o.quiet, o.begun, o.open = true, !m.leg.State().Over(), false
			m.part()
			since = time.Now()
		case stepAwait:
			o.begun, o.open = r.begun(ctx, m), false
			m.part()
			since = time.Now()
		case stepFence:
			if o.fenced = r.wait(ctx, m.s, m.decode, m.model, since); !o.fenced {
				o.over = true
			}
		case stepNotifyDecode:
			r.notifyDecode(ctx, m, end)
			return
		}
	}
}

// beginsWithin bounds the wait for decode to begin with a request. What it has begun with meanwhile for prefill engines that are
// gone takes the place that others need.
const beginsWithin = 10 * time.Second

// begun waits until decode has surely begun with the request, whose leg is open still, and reports whether it is shown: a request
// that was sent long enough behind it has completed.
func (r *reclaimer) begun(ctx context.Context, m *job) bool {
	ctx, cancel := context.WithTimeout(ctx, beginsWithin)
	defer cancel()
	return r.wait(ctx, m.s, m.decode, m.model, m.closed) && !m.leg.State().Over()
}

// quietWithin bounds one wait for a request to be handed over. Then it is looked whether prefill's run is over.
const quietWithin = 2*fenceAfter + time.Second

// quiet waits until a whole later request has been handed over between the two, or decode's leg has brought tokens, and reports whether
// either is so.
func (r *reclaimer) quiet(ctx context.Context, m *job) bool {
	ctx, cancel := context.WithTimeout(ctx, quietWithin)
	defer cancel()
	asks := !m.probe || r.pairs.Ready(metadata.Pair{Prefill: m.prefill.Incarnation(), Decode: m.decode.Incarnation()})
	return r.handedOver(ctx, m, m.closed, asks) || m.leg.TookAll()
}

// sleep blocks for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// part ends a decode leg that is open still, and waits for that. It may be called twice.
func (m *job) part() {
	if m.leg == nil {
		return
	}
	m.leg.Cancel(leg.ErrEnded)
	m.leg.WaitSent() // that it is over
	m.leg = nil
}

// askAgain asks prefill once more under the same id, and says what came of it. A new run that has answered instead holds
// something as well, which is given back.
func (r *reclaimer) askAgain(ctx context.Context, m *job) dispatch.EventKind {
	if m.again == nil {
		return dispatch.EvPrefillLost
	}
	limit := m.s.limits.Answer
	var l leg.Leg
	l.Open(ctx, m.prefill)
	defer l.End()
	v := l.AskWhole(&m.again.Request, limit)
	m.parted = l.Acknowledged()
	if v != leg.Usable {
		return v.PrefillEvent().Kind
	}
	if l.Answer.KVParams == nil {
		return dispatch.EvPrefillUsable // it has finished, and written, though it does not say so
	}
	k := m.conn.Accept(&m.h, l.Answer.KVParams)
	if k == dispatch.EvPrefillMoved {
		was := m.h.Endpoint
		if c, ok := connector.ParseCoordinates(l.Answer.KVParams); ok {
			r.monitor.Moved(m.prefill, was, c)
		}
		anew := *m
		anew.h.KVParams = append([]byte(nil), l.Answer.KVParams...)
		r.start(&anew, func(ctx context.Context) {
			r.giveBack(ctx, &anew, prefillHeld{answered: true}, certain)
		}, nil)
		return k
	}
	m.h.KVParams = append([]byte(nil), l.Answer.KVParams...)
	return dispatch.EvPrefillUsable
}

// plainlyNamed reports whether prefill knows the request by the very name that it was given, as far as its answer tells.
func (m *job) plainlyNamed() bool {
	h, ok := connector.ParseKVParams(m.first)
	return !ok || len(h.Request) == 0 || string(jsonscan.Unescape(nil, h.Request)) == string(m.h.Shape.AppendEngineRequest(nil, m.h.Request))
}

// giveBackFirst sees to what prefill may hold since it has answered for the first time.
func (r *reclaimer) giveBackFirst(ctx context.Context, m *job, d certainty) {
	if m.first == nil {
		return
	}
	was := *m
	was.h.KVParams = m.first
	r.giveBack(ctx, &was, prefillHeld{answered: true, asked: true}, d)
}

// giveBack sees to KV that prefill holds, for sure or with a doubt.
func (r *reclaimer) giveBack(ctx context.Context, m *job, l prefillHeld, d certainty) {
	l.agent = m.s.agent != nil
	l.reads = m.conn.Traits().Reads
	l.answered = l.answered && m.h.KVParams != nil
	end := "not_taken"
	if l.asked {
		end = "prefill_waits"
	}
	for {
		if l.asked && l.reads && !l.ended {
			l.ended = diesNow(ctx, m)
		}
		switch s, why := l.next(); s {
		case stepNotifyPrefill:
			if err := r.notifyPrefill(ctx, m); err == nil {
				r.leaks.reclaimed(end, "notify_prefill")
				return
			}
			l.told = true
		case stepTake:
			if r.taken(ctx, m) {
				r.leaks.reclaimed(end, "decode_leg")
				return
			}
			l.taken = true
		case stepFence:
			if l.fenced = r.wait(ctx, m.s, m.decode, m.model, m.closed); !l.fenced {
				r.leakIf(ctx, m, leakUnfenced, d)
				return
			}
		default:
			r.leakIf(ctx, m, why, d)
			return
		}
	}
}

// notifyPrefill tells prefill's ranks that what they hold was taken.
func (r *reclaimer) notifyPrefill(ctx context.Context, m *job) error {
	h, ok := connector.ParseKVParams(m.h.KVParams)
	c, known := connector.ParseCoordinates(m.h.KVParams)
	if !ok || !known || len(h.Request) == 0 {
		return errors.New("prefill's answer does not say by which name it knows the request")
	}
	to, err := ranksOf(ctx, m.s, m.prefill, c)
	if err != nil {
		return err
	}
	consumers := c.TP // one consumer for each producer rank
	if m.conn.Traits().Reads {
		consumers = 1 // as many messages as it says are waited for
	}
	message := string(jsonscan.Unescape(nil, h.Request)) + ":" + strconv.Itoa(consumers)
	if err := m.s.agent.Notify(ctx, to, message, 1); err != nil {
		r.log.Warn("notification", "engine", m.prefill.Name, "transfer_id", m.h.Transfer, "err", err)
		return err
	}
	r.log.Info("reclaimed", "engine", m.prefill.Name, "transfer_id", m.h.Transfer, "by", "notify_prefill")
	return nil
}

// notifyDecode tells decode's ranks that what they wait for has come, so that they give it up: the request is over.
func (r *reclaimer) notifyDecode(ctx context.Context, m *job, end string) {
	tp := max(1, m.decode.Origin.Entry.TensorParallel)
	to, err := ranksOf(ctx, m.s, m.decode, &connector.PrefillEndpoint{EngineID: m.run, TP: tp, PP: 1})
	if errors.Is(err, errMoved) {
		r.leaks.reclaimed(end, "restart")
		return
	}
	c := m.h.Endpoint
	if err == nil {
		message := string(m.h.Shape.AppendEngineRequest(nil, m.h.Request)) + ":" + strconv.Itoa(c.TP)
		err = m.s.agent.Notify(ctx, to, message, c.PP*max(1, c.TP/tp))
	}
	if err != nil {
		r.log.Warn("notification", "engine", m.decode.Name, "transfer_id", m.h.Transfer, "err", err)
		r.leak(ctx, m, m.decode, leakUntold)
		return
	}
	r.leaks.reclaimed(end, "notify_decode")
	r.log.Info("reclaimed", "engine", m.decode.Name, "transfer_id", m.h.Transfer, "by", "notify_decode")
}

// errMoved says that another run of an engine answers than the one that was to be told something.
var errMoved = errors.New("another run of the engine answers")

// ranksOf returns the records of all ranks of one run of an engine.
func ranksOf(ctx context.Context, s *reclaimSnapshot, e *fleet.Engine, c *connector.PrefillEndpoint) ([]metadata.Record, error) {
	if known := s.fleet.Records(e); len(known) == c.PP*c.TP && known[0].EngineID == c.EngineID {
		return known, nil
	}
	stock := s.stock
	at, ok := e.SideChannel(c)
	if stock == nil || !ok {
		return nil, errors.New("its side channel is not known")
	}
	recs, err := stock.All(ctx, at)
	if err != nil {
		if first, ferr := stock.First(ctx, at); ferr == nil && first.EngineID != c.EngineID {
			return nil, errMoved
		}
		return nil, err
	}
	for i := range recs {
		recs[i].Engine = e.Name
	}
	return recs, nil
}
