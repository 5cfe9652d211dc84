package router

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/reason"
	"pdrouter/router/report"
	"pdrouter/router/upstream"
)

// A background response (background: true of /v1/responses) outlives its request: the engine answers at once and works on. For callers
// with token or concurrency limits the lease of the request is therefore held until the response ends, and charged once. The gateway learns
// of the end from the answers to clients that ask for the response or cancel it, and asks the engine itself if none does.

// backgroundResponses are the background responses whose leases are held, by response id.
type backgroundResponses struct {
	ctx    context.Context // ends when the router stops
	stop   context.CancelFunc
	leases atomic.Int64 // of requests for background responses, and of the responses

	mu   sync.Mutex
	byID map[string]*backgroundResponse
}

func newBackgroundResponses() *backgroundResponses {
	b := &backgroundResponses{byID: map[string]*backgroundResponse{}}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// close ends all leases, and those that are to be held later.
func (b *backgroundResponses) close() {
	b.stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.byID {
		p.end(-1)
	}
}

// backgroundLease is the lease of a request for a background response.
type backgroundLease struct {
	Lease
	set *backgroundResponses // that counts it; nil until admit has
}

// admit counts the lease. It returns false if there are max already.
func (b *backgroundResponses) admit(l *backgroundLease, max int) bool {
	if b.leases.Add(1) > int64(max) {
		b.leases.Add(-1)
		return false
	}
	l.set = b
	return true
}

// Done implements Lease.
func (l *backgroundLease) Done(tokens int) {
	if l.set != nil {
		l.set.leases.Add(-1)
	}
	l.Lease.Done(tokens)
}

// backgroundResponse is one response whose lease is held.
type backgroundResponse struct {
	lease *backgroundLease
	once  sync.Once
	ended chan struct{} // closed when the lease has ended
}

// end ends the lease with the tokens that the response has used, or -1 if they are unknown. Only the first call counts.
func (p *backgroundResponse) end(tokens int) {
	p.once.Do(func() {
		p.lease.Done(tokens)
		close(p.ended)
	})
}

// holdLease requires a limit of the answer from callers with token or concurrency limits who ask for a background response, and marks
// the lease to be held until the response ends.
func (q *admitted) holdLease(allowed Allowance) *openai.Error {
	if q.b.Unsplittable != openai.UnsplitBackground || q.lease == nil || allowed.Tokens.Limit == 0 && allowed.Concurrent == 0 {
		return nil
	}
	if q.b.MaxTokens < 0 {
		return ofCaller(openai.ErrBadRequest(reason.BadField, "max_output_tokens", "max_output_tokens is required with background: true, because the caller has limits."), q.who, q.model())
	}
	q.lease = &backgroundLease{Lease: q.lease}
	return nil
}

// worksOn reports whether the engine may still work on the background response of a request that has ended.
func worksOn(x *exchange) bool {
	if x.cur == nil || x.cur.decode.State() == dispatch.LegIdle {
		return false
	}
	switch x.sum.Outcome {
	case report.Completed:
		if x.sum.Stream || x.sum.Status != http.StatusOK {
			return false
		}
		_, works := readBackground(x.reply.body)
		return works
	case report.ClientLeft, report.FailedAfter:
		return x.reply.stream == nil || !x.reply.stream.Whole()
	case report.FailedBefore: // for a reason of the gateway's own, of which the engine does not know
		return failedAtWork(x.why)
	}
	return false
}

// awaitLater holds the lease until the response with that id has ended at the engine, for at most timeouts.background.
func (r *Router) awaitLater(id string, e *fleet.Engine, f *leg.Forwarded, l *backgroundLease) {
	b, p := r.backgrounds, &backgroundResponse{lease: l, ended: make(chan struct{})}
	b.mu.Lock()
	stopped := b.ctx.Err() != nil
	if !stopped {
		b.byID[id] = p
	}
	b.mu.Unlock()
	if stopped {
		p.end(-1)
		return
	}
	r.tasks.Go("a background response", func() {
		defer func() {
			b.mu.Lock()
			delete(b.byID, id)
			b.mu.Unlock()
			p.end(-1)
		}()
		ctx, cancel := context.WithTimeout(b.ctx, r.snapshot().cfg.Timeouts.Background)
		defer cancel()
		r.awaitBackground(ctx, id, e, f, p)
	})
}

// The engine is asked for a background response after one second, then ever more seldom.
const (
	backgroundPollFirst = time.Second
	backgroundPollMax   = 30 * time.Second
)

// awaitBackground returns when the response has ended, or when that cannot be learned any more.
func (r *Router) awaitBackground(ctx context.Context, id string, e *fleet.Engine, f *leg.Forwarded, p *backgroundResponse) {
	for wait := backgroundPollFirst; ; wait = min(2*wait, backgroundPollMax) {
		select {
		case <-p.ended:
			return
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				r.log.Warn("background response did not end in time", "response_id", id, "engine", e.Name)
			}
			return
		case <-time.After(wait):
		}
		if r.snapshot().fleet.Engine(e.Name) != e {
			r.log.Warn("background response lost with its engine", "response_id", id, "engine", e.Name)
			return
		}
		if tokens, works := r.askBackground(ctx, id, e, f); !works {
			p.end(tokens)
			return
		}
	}
}

// askBackground asks the engine for a response, and returns what readBackground does. An engine that does not answer may work on; one that
// does not know the response does not.
func (r *Router) askBackground(ctx context.Context, id string, e *fleet.Engine, f *leg.Forwarded) (tokens int, works bool) {
	cfg := r.snapshot().cfg
	var l leg.Leg
	l.Open(ctx, e)
	defer l.End()
	defer l.CancelAfter(cfg.Timeouts.Request, leg.ErrLate).Stop()
	req := &upstream.Request{Method: http.MethodGet, Path: pathResponses + "/" + id, Header: l.Header(nil, newRequestID(), f, false)[1:]}
	switch v := l.Send(req, cfg.Limits.Answer); {
	case v == leg.Rejected && l.Status == http.StatusNotFound:
		return -1, false
	case v != leg.Usable || l.ReadAny(cfg.Limits.Answer) != leg.Usable:
		return 0, true
	}
	return readBackground(l.Body)
}

// saw ends the lease of a background response if the answer to a client that asked for it says that it has ended.
func (b *backgroundResponses) saw(x *exchange) {
	id, _, _ := strings.Cut(strings.TrimPrefix(x.path, pathResponses+"/"), "/")
	id, _, _ = strings.Cut(id, "?")
	b.mu.Lock()
	p := b.byID[id]
	b.mu.Unlock()
	if p == nil {
		return
	}
	tokens, works := -1, true
	if s := x.reply.stream; s != nil {
		works = !s.Whole()
		if x.usage.Counted {
			tokens = x.sum.PromptTokens + x.sum.OutputTokens
		}
	} else if x.sum.Status == http.StatusOK {
		tokens, works = readBackground(x.reply.body)
	}
	if !works {
		p.end(tokens)
	}
}

// readBackground reads whether an engine still works on a response, and if not, the tokens that it has used, or -1 if they are unknown.
func readBackground(body []byte) (tokens int, works bool) {
	var a answer.Answer
	var status string
	s := jsonscan.Scanner{Bytes: body, MaxDepth: answer.MaxAnswerDepth}
	s.Space()
	m, ok := s.Object(1)
	for ok && s.Member(&m) {
		switch key := string(m.Key); {
		case key == "status" && s.Peek() == '"':
			status = answer.ReadText(&s)
		case key == "usage":
			answer.ReadUsage(&s, 1, &a)
		default:
			s.Value(1)
		}
	}
	switch {
	case status == "queued" || status == "in_progress":
		return 0, true
	case a.HasUsage:
		return a.PromptTokens + a.CompletionTokens, false
	case status == "failed": // it has no answer
		return 0, false
	}
	return -1, false
}

func errTooManyBackground() *openai.Error {
	return openai.NewError(reason.TooManyBackground, "Too many background responses are in progress. Try again later.")
}
