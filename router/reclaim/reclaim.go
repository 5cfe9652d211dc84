// Package reclaim frees KV that an ended request has left with a stock engine: decode may wait for KV that nobody writes, prefill may hold
// what nobody takes. What is safe to do next is decided by two pure values (decodeHeld, PrefillHeld); Reclaimer does it: it asks an engine
// again, or tells its ranks by the gateway's own agent, once a later request has shown that the engine has noticed the end. What cannot be
// freed is counted in Leaks, by cause. The exchange and the handshake hand it a Job when a request is over; it never decides how a request
// ends.
package reclaim

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

// Agent is the gateway's own agent among those of stock engines. It must be safe for concurrent use.
type Agent interface {
	// Notify sends a message so many times to the agent of each of these ranks, as their own peer would. It may block until
	// ctx ends. Nil means that the messages are on their way.
	Notify(ctx context.Context, to []metadata.Record, message string, times int) error
	// Forget drops what is known of an engine, whose run is over. It must not block.
	Forget(engine string)
}

// Snapshot is what the KV that a request has left is seen to with. It is never changed.
type Snapshot struct {
	Fleet    *fleet.Fleet
	Limits   config.Limits
	Timeouts config.Timeouts
	Agent    Agent         // nil: no engine can be told anything
	Stock    monitor.Stock // asks engines which run they are; nil: they are not asked
	// HandOver sends a whole request of the gateway's own to the two engines of a pair, and returns when decode has answered it.
	HandOver func(ctx context.Context, c *fleet.Pair) error
}

// Reclaimer sees to KV that ended requests left with stock engines. It is safe for concurrent use. What it does for a request goes by
// the snapshot that the request was admitted with.
type Reclaimer struct {
	log     *slog.Logger
	tasks   *background.Tasks
	pairs   *fleet.Handshakes
	monitor *monitor.Monitor
	Leaks   *Leaks
}

// New returns one that counts with leaks what cannot be freed.
func New(log *slog.Logger, tasks *background.Tasks, pairs *fleet.Handshakes, m *monitor.Monitor, l *Leaks) *Reclaimer {
	return &Reclaimer{log: log, tasks: tasks, pairs: pairs, monitor: m, Leaks: l}
}

// Job is a request that is over and may have left KV behind, with all that is needed to see to that. Nobody else
// changes it. Whoever sees to it holds the body.
type Job struct {
	Snapshot        *Snapshot // what the request was admitted with
	Handoff         connector.Handoff
	Body            *openai.Body // whose bytes the requests again and taking have; nil if there are none
	conn            connector.Connector
	model           string
	Prefill, Decode *fleet.Engine
	run             string       // decode's, when the request ended; "" if it is not known
	Closed          time.Time    // when the decode leg had ended
	OpenLeg         *leg.Leg     // decode's, which is open still; nil if it was ended with the request
	InTurn          bool         // decode begins with the request before those that come later
	PrefillLost     bool         // prefill's leg has ended without a usable answer: it may run there still, or be held
	Noticed         bool         // and prefill has shown that it knows that
	NoHandOff       bool         // prefill has answered and handed nothing off: it never writes what decode waits for
	Again           *leg.Request // prefill's request; nil if it is not to be asked again
	Taking          *leg.Request // decode's, of one token, under the same id; nil if none is to be sent
	Tokens          int          // of the prompt, estimated
	FirstParams     []byte       // what prefill has answered already; nil if it has not
	Probe           bool         // it is a handshake: no request is sent for its sake while others fail
	counted         bool         // KV of the request was counted as left already: with one engine or two, it is one ending
}

// Certainty is how sure it is that an engine holds something.
type Certainty uint8

const (
	Certain  Certainty = iota
	Possible           // it may be: if it cannot be given back, it is counted as such
	unlikely           // most likely it is not: then nothing is counted
)

// NewJob returns what a hand-over between these engines may leave behind.
func NewJob(s *Snapshot, h *connector.Handoff, conn connector.Connector, model string, p, d *fleet.Engine) *Job {
	return &Job{Snapshot: s, Handoff: *h, conn: conn, model: model, Prefill: p, Decode: d, run: d.ChannelReport().Run, Closed: time.Now()}
}

// Settle sees to KV that decode holds for a request which is over, as prefill has yet to write it. It takes its time.
//
// If prefill has answered before, it may have lost what it was to write, and decode's registration with it: that it is asked
// again frees decode's blocks if the registration is still there, and nobody can tell whether it is.
func (r *Reclaimer) Settle(ctx context.Context, m *Job) {
	entry := m.Decode.Origin.Entry
	o := decodeHeld{agent: m.Snapshot.Agent != nil, channel: m.run != "", named: entry.PlainRequestIDs, finished: m.FirstParams != nil}
	o.barred = m.FirstParams != nil && m.plainlyNamed()
	plain := m.FirstParams == nil && m.Prefill.Origin.Entry.PlainRequestIDs
	o.lost = plain && m.PrefillLost
	o.barred = o.barred || o.lost && !m.Noticed
	end := "prefill_lost"
	if m.NoHandOff {
		end, o.run = "nothing_handed_off", runOver
	}
	defer m.EndLeg()
	o.open = m.OpenLeg != nil && m.InTurn
	var check livenessCheck
	since := m.Closed
	for pause := 100 * time.Millisecond; ; {
		if c := m.Prefill.Endpoint.Load(); c != nil && c.EngineID != m.Handoff.Endpoint.EngineID {
			end, o.run = "prefill_restarted", runOver
		}
		o.over, o.down = ctx.Err() != nil, m.Prefill.Down.Load()
		s, why := o.next()
		if o.open && !s.leavesOpen() || o.run == runLives && s != stepRest && s != stepQuiet {
			o.open = false
			m.EndLeg()
		}
		switch s {
		case stepNothing:
			if m.FirstParams != nil {
				r.CountLeak(ctx, m, m.Decode, CausePossible)
				r.GiveBackFirst(ctx, m, Possible)
			} else {
				r.Leaks.reclaimed(end, "asked_again")
			}
			if m.Handoff.KVParams != nil { // decode's leg may have ended before it had registered, and then prefill waits for it
				r.GiveBack(ctx, m, PrefillHeld{Answered: true, Asked: true}, unlikely)
			}
			return
		case stepCount:
			r.CountLeak(ctx, m, m.Decode, why)
			if o.run == runLives {
				r.GiveBackFirst(ctx, m, Possible)
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
				if o.lost = plain && m.Again != nil; o.lost { // as the first was
					o.run, o.barred, m.Closed = runUnknown, !m.Noticed, time.Now()
				}
			}
		case stepClear:
			if o.lost = !r.cleared(ctx, m); o.lost { // it may have come to its end meanwhile
				o.run = check.at(ctx, m.Snapshot, m.Prefill, m.Handoff.Endpoint)
				since, o.barred = time.Now(), o.run == runLives
			}
		case stepLook:
			o.run = check.at(ctx, m.Snapshot, m.Prefill, m.Handoff.Endpoint)
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
				o.run = check.at(ctx, m.Snapshot, m.Prefill, m.Handoff.Endpoint)
				sleep(ctx, time.Second)
			}
		case stepQuiet:
			if !r.awaitHandOver(ctx, m) {
				o.run = check.at(ctx, m.Snapshot, m.Prefill, m.Handoff.Endpoint)
				since = time.Now()
				continue
			}
			if m.OpenLeg.TookAll() { // it was only slow
				return
			}
			o.quiet, o.begun, o.open = true, !m.OpenLeg.State().Over(), false
			m.EndLeg()
			since = time.Now()
		case stepAwait:
			o.begun, o.open = r.begun(ctx, m), false
			m.EndLeg()
			since = time.Now()
		case stepBarrier:
			if o.fenced = r.wait(ctx, m.Snapshot, m.Decode, m.model, since); !o.fenced {
				o.over = true
			}
		case stepNotifyDecode:
			r.notifyDecode(ctx, m, end)
			return
		}
	}
}

// BeginsWithin bounds the wait for decode to begin with a request. What it has begun with meanwhile for prefill engines that are
// gone takes the place that others need.
const BeginsWithin = 10 * time.Second

// begun waits until decode has surely begun with the request, whose leg is open still, and reports whether it is shown: a request
// that was sent long enough behind it has completed.
func (r *Reclaimer) begun(ctx context.Context, m *Job) bool {
	ctx, cancel := context.WithTimeout(ctx, BeginsWithin)
	defer cancel()
	return r.wait(ctx, m.Snapshot, m.Decode, m.model, m.Closed) && !m.OpenLeg.State().Over()
}

// handOverWithin bounds one wait for a request to be handed over. Then it is looked whether prefill's run is over.
const handOverWithin = 2*BarrierAfter + time.Second

// awaitHandOver waits until a whole later request has been handed over between the two, or decode's leg has brought tokens, and reports whether
// either is so.
func (r *Reclaimer) awaitHandOver(ctx context.Context, m *Job) bool {
	ctx, cancel := context.WithTimeout(ctx, handOverWithin)
	defer cancel()
	asks := !m.Probe || r.pairs.Ready(metadata.Pair{Prefill: m.Prefill.Incarnation(), Decode: m.Decode.Incarnation()})
	return r.handedOver(ctx, m, m.Closed, asks) || m.OpenLeg.TookAll()
}

// sleep blocks for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// EndLeg ends a decode leg that is open still, and waits for that. It may be called twice.
func (m *Job) EndLeg() {
	if m.OpenLeg == nil {
		return
	}
	m.OpenLeg.Cancel(leg.ErrEnded)
	m.OpenLeg.WaitSent() // that it is over
	m.OpenLeg = nil
}

// askAgain asks prefill once more under the same id, and says what came of it. A new run that has answered instead holds
// something as well, which is given back.
func (r *Reclaimer) askAgain(ctx context.Context, m *Job) dispatch.EventKind {
	if m.Again == nil {
		return dispatch.EvPrefillLost
	}
	limit := m.Snapshot.Limits.Answer
	var l leg.Leg
	l.Open(ctx, m.Prefill)
	defer l.End()
	v := l.AskWhole(&m.Again.Request, limit)
	m.Noticed = l.Acknowledged()
	if v != leg.Usable {
		return v.PrefillEvent().Kind
	}
	if l.Answer.KVParams == nil {
		return dispatch.EvPrefillUsable // it has finished, and written, though it does not say so
	}
	k := m.conn.Accept(&m.Handoff, l.Answer.KVParams)
	if k == dispatch.EvPrefillMoved {
		was := m.Handoff.Endpoint
		if c, ok := connector.ParseEndpoint(l.Answer.KVParams); ok {
			r.monitor.Moved(m.Prefill, was, c)
		}
		anew := *m
		anew.Handoff.KVParams = append([]byte(nil), l.Answer.KVParams...)
		r.Start(&anew, func(ctx context.Context) {
			r.GiveBack(ctx, &anew, PrefillHeld{Answered: true}, Certain)
		}, nil)
		return k
	}
	m.Handoff.KVParams = append([]byte(nil), l.Answer.KVParams...)
	return dispatch.EvPrefillUsable
}

// plainlyNamed reports whether prefill knows the request by the very name that it was given, as far as its answer tells.
func (m *Job) plainlyNamed() bool {
	h, ok := connector.ParseKVParams(m.FirstParams)
	return !ok || len(h.Request) == 0 || string(jsonscan.Unescape(nil, h.Request)) == string(m.Handoff.Shape.AppendEngineRequest(nil, m.Handoff.Request))
}

// GiveBackFirst sees to what prefill may hold since it has answered for the first time.
func (r *Reclaimer) GiveBackFirst(ctx context.Context, m *Job, d Certainty) {
	if m.FirstParams == nil {
		return
	}
	was := *m
	was.Handoff.KVParams = m.FirstParams
	r.GiveBack(ctx, &was, PrefillHeld{Answered: true, Asked: true}, d)
}

// GiveBack sees to KV that prefill holds, for sure or with a doubt.
func (r *Reclaimer) GiveBack(ctx context.Context, m *Job, l PrefillHeld, d Certainty) {
	l.agent = m.Snapshot.Agent != nil
	l.reads = m.conn.Traits().Reads
	l.Answered = l.Answered && m.Handoff.KVParams != nil
	end := "not_taken"
	if l.Asked {
		end = "prefill_waits"
	}
	for {
		if l.Asked && l.reads && !l.ended {
			l.ended = diesNow(ctx, m)
		}
		switch s, why := l.next(); s {
		case stepNotifyPrefill:
			if err := r.notifyPrefill(ctx, m); err == nil {
				r.Leaks.reclaimed(end, "notify_prefill")
				return
			}
			l.tellFailed = true
		case stepTake:
			if r.taken(ctx, m) {
				r.Leaks.reclaimed(end, "decode_leg")
				return
			}
			l.TakeFailed = true
		case stepBarrier:
			if l.fenced = r.wait(ctx, m.Snapshot, m.Decode, m.model, m.Closed); !l.fenced {
				r.leakIf(ctx, m, CauseUnfenced, d)
				return
			}
		default:
			r.leakIf(ctx, m, why, d)
			return
		}
	}
}

// notifyPrefill tells prefill's ranks that what they hold was taken.
func (r *Reclaimer) notifyPrefill(ctx context.Context, m *Job) error {
	h, ok := connector.ParseKVParams(m.Handoff.KVParams)
	c, known := connector.ParseEndpoint(m.Handoff.KVParams)
	if !ok || !known || len(h.Request) == 0 {
		return errors.New("prefill's answer does not say by which name it knows the request")
	}
	to, err := ranksOf(ctx, m.Snapshot, m.Prefill, c)
	if err != nil {
		return err
	}
	consumers := c.TP // one consumer for each producer rank
	if m.conn.Traits().Reads {
		consumers = 1 // as many messages as it says are waited for
	}
	message := string(jsonscan.Unescape(nil, h.Request)) + ":" + strconv.Itoa(consumers)
	if err := m.Snapshot.Agent.Notify(ctx, to, message, 1); err != nil {
		r.log.Warn("notification", "engine", m.Prefill.Name, "transfer_id", m.Handoff.Transfer, "err", err)
		return err
	}
	r.log.Info("reclaimed", "engine", m.Prefill.Name, "transfer_id", m.Handoff.Transfer, "by", "notify_prefill")
	return nil
}

// notifyDecode tells decode's ranks that what they wait for has come, so that they give it up: the request is over.
func (r *Reclaimer) notifyDecode(ctx context.Context, m *Job, end string) {
	tp := max(1, m.Decode.Origin.Entry.TensorParallel)
	to, err := ranksOf(ctx, m.Snapshot, m.Decode, &connector.PrefillEndpoint{EngineID: m.run, TP: tp, PP: 1})
	if errors.Is(err, errMoved) {
		r.Leaks.reclaimed(end, "restart")
		return
	}
	c := m.Handoff.Endpoint
	if err == nil {
		message := string(m.Handoff.Shape.AppendEngineRequest(nil, m.Handoff.Request)) + ":" + strconv.Itoa(c.TP)
		err = m.Snapshot.Agent.Notify(ctx, to, message, c.PP*max(1, c.TP/tp))
	}
	if err != nil {
		r.log.Warn("notification", "engine", m.Decode.Name, "transfer_id", m.Handoff.Transfer, "err", err)
		r.CountLeak(ctx, m, m.Decode, CauseUntold)
		return
	}
	r.Leaks.reclaimed(end, "notify_decode")
	r.log.Info("reclaimed", "engine", m.Decode.Name, "transfer_id", m.Handoff.Transfer, "by", "notify_decode")
}

// errMoved says that another run of an engine answers than the one that was to be told something.
var errMoved = errors.New("another run of the engine answers")

// ranksOf returns the records of all ranks of one run of an engine.
func ranksOf(ctx context.Context, s *Snapshot, e *fleet.Engine, c *connector.PrefillEndpoint) ([]metadata.Record, error) {
	if known := s.Fleet.Records(e); len(known) == c.PP*c.TP && known[0].EngineID == c.EngineID {
		return known, nil
	}
	stock := s.Stock
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
