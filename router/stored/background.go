package stored

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/internal/background"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/leg"
	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/upstream"
)

// A background response (background: true of /v1/responses) outlives its request: the engine answers at once and works on. For callers
// with token or concurrency limits the lease of the request is therefore held until the response ends, and charged once. The gateway learns
// of the end from the answers to clients that ask for the response or cancel it, and asks the engine itself if none does.

// Background holds the leases of background responses. It is safe for concurrent use.
type Background struct {
	log     *slog.Logger
	tasks   *background.Tasks
	current func() (*config.Config, *fleet.Fleet) // what the engines are asked by
	ctx     context.Context                       // ends when the router stops
	stop    context.CancelFunc
	leases  atomic.Int64 // of requests for background responses, and of the responses

	mu   sync.Mutex
	byID map[string]*response
}

// NewBackground returns one that holds no lease. current returns the present configuration, and its engines.
func NewBackground(log *slog.Logger, tasks *background.Tasks, current func() (*config.Config, *fleet.Fleet)) *Background {
	b := &Background{log: log, tasks: tasks, current: current, byID: map[string]*response{}}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// Close ends all leases, and every later one.
func (b *Background) Close() {
	b.stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.byID {
		p.end(-1)
	}
}

// Ender is a lease as the caller's limits give it out. Done is called once, with the tokens that were used, or -1 if that is unknown.
type Ender interface {
	Done(tokens int)
}

// Lease is the lease of a request for a background response.
type Lease struct {
	Ender
	set *Background // that counts it; nil until Reserve has
}

// Reserve counts the lease as one that may be held. It returns false if there are max already.
func (b *Background) Reserve(l *Lease, max int) bool {
	if b.leases.Add(1) > int64(max) {
		b.leases.Add(-1)
		return false
	}
	l.set = b
	return true
}

// Done implements Ender.
func (l *Lease) Done(tokens int) {
	if l.set != nil {
		l.set.leases.Add(-1)
	}
	l.Ender.Done(tokens)
}

// response is one response whose lease is held.
type response struct {
	lease *Lease
	once  sync.Once
	ended chan struct{} // closed when the lease has ended
}

// end ends the lease with the tokens that the response has used, or -1 if they are unknown. Only the first call counts.
func (p *response) end(tokens int) {
	p.once.Do(func() {
		p.lease.Done(tokens)
		close(p.ended)
	})
}

// Leases is how many leases there are: of requests for background responses, and of the responses.
func (b *Background) Leases() int { return int(b.leases.Load()) }

// Holds reports whether the lease of the response is held.
func (b *Background) Holds(id string) bool { return b.get(id) != nil }

// End ends the lease of a response with the tokens that it has used, or -1 if they are unknown, if it is held.
func (b *Background) End(id string, tokens int) {
	if p := b.get(id); p != nil {
		p.end(tokens)
	}
}

func (b *Background) get(id string) *response {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byID[id]
}

// Hold holds the lease until the response with that id has ended at the engine, for at most timeouts.background.
func (b *Background) Hold(id string, e *fleet.Engine, f *leg.Forwarded, l *Lease) {
	p := &response{lease: l, ended: make(chan struct{})}
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
	b.tasks.Go("a background response", func() {
		defer func() {
			b.mu.Lock()
			delete(b.byID, id)
			b.mu.Unlock()
			p.end(-1)
		}()
		cfg, _ := b.current()
		ctx, cancel := context.WithTimeout(b.ctx, cfg.Timeouts.Background)
		defer cancel()
		b.await(ctx, id, e, f, p)
	})
}

// The engine is asked for a background response after one second, then ever more seldom.
const (
	pollFirst = time.Second
	PollMax   = 30 * time.Second
)

// await returns when the response has ended, or when that cannot be learned any more.
func (b *Background) await(ctx context.Context, id string, e *fleet.Engine, f *leg.Forwarded, p *response) {
	for wait := pollFirst; ; wait = min(2*wait, PollMax) {
		select {
		case <-p.ended:
			return
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				b.log.Warn("background response did not end in time", "response_id", id, "engine", e.Name)
			}
			return
		case <-time.After(wait):
		}
		if _, f := b.current(); f.Engine(e.Name) != e {
			b.log.Warn("background response lost with its engine", "response_id", id, "engine", e.Name)
			return
		}
		if tokens, works := b.ask(ctx, id, e, f); !works {
			p.end(tokens)
			return
		}
	}
}

// ask asks the engine for a response, and returns what ReadState does. An engine that does not answer may work on; one that
// does not know the response does not.
func (b *Background) ask(ctx context.Context, id string, e *fleet.Engine, f *leg.Forwarded) (tokens int, works bool) {
	cfg, _ := b.current()
	var h connector.Handoff
	h.Draw() // an id for its logs
	var l leg.Leg
	l.Open(ctx, e)
	defer l.End()
	defer l.CancelAfter(cfg.Timeouts.Request, leg.ErrLate).Stop()
	req := &upstream.Request{Method: http.MethodGet, Path: openai.PathResponses + "/" + id, Header: l.Header(nil, h.Request, f, false)[1:]}
	switch v := l.Send(req, int(cfg.Limits.Answer)); {
	case v == leg.Rejected && l.Status == http.StatusNotFound:
		return -1, false
	case v != leg.Usable || l.ReadAny(int(cfg.Limits.Answer)) != leg.Usable:
		return 0, true
	}
	return ReadState(l.Body)
}

// ReadState reads from an answer whether an engine still works on a response, and if not, the tokens that it has used, or -1 if they are unknown.
func ReadState(body []byte) (tokens int, works bool) {
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
