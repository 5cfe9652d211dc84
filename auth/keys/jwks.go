package keys

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// backOffs is how many times MinInterval a failing server is left alone at most.
const backOffs = 6

// JWKS is an issuer's key set, asked for in the background by Run and by nothing else: a verifier reads what is there and
// never waits. Until the first good answer, and when the last one is older than MaxStale, its set is stale. It is safe
// for concurrent use.
type JWKS struct {
	cfg       JWKSConfig
	shown     string            // where the set is, for the log
	transport http.RoundTripper // nil: one for each question
	log       *slog.Logger

	good  atomic.Pointer[goodJWKS] // nil before the first
	stale *Set                     // stands for a set that is not believed
	asked chan struct{}            // closed when the first question is over
	hint  chan struct{}            // has room for one

	fetches, failures atomic.Uint64
}

// goodJWKS is the last good answer. A later one with the same keys has the same set, so that no verdict is voided.
type goodJWKS struct {
	set     *Set
	others  int
	doubled []string
	at      time.Time
	until   time.Time
}

// JWKSStats is how an issuer's key set is doing.
type JWKSStats struct {
	Keys     int           // that tokens can be checked with; 0 before the first good answer
	Others   int           // of the set, that were passed over
	Age      time.Duration // since the last good answer; 0 before the first
	Stale    bool          // the set is not believed now: the issuer's tokens are answered 503
	Fetches  uint64        // questions asked
	Failures uint64        // of them without a good answer
}

// NewJWKS returns a key set that nobody has asked for yet. A nil transport stands for one made from the configuration;
// CAFile is for that one alone.
func NewJWKS(cfg JWKSConfig, transport http.RoundTripper, log *slog.Logger) (*JWKS, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("auth: jwks: %w", err)
	}
	if _, err := loadAuthorities(cfg.CAFile); err != nil {
		return nil, fmt.Errorf("auth: jwks: %w", err)
	}
	return &JWKS{
		cfg: cfg.WithDefaults(), shown: cfg.shown(), transport: transport, log: log,
		stale: NewSet(time.Now()), asked: make(chan struct{}), hint: make(chan struct{}, 1),
	}, nil
}

// Current implements Source.
func (j *JWKS) Current() *Set {
	if g := j.good.Load(); g != nil && time.Now().Before(g.until) {
		return g.set
	}
	return j.stale
}

// Missed implements Source. Whatever is hinted, Run asks once.
func (j *JWKS) Missed(string) {
	select {
	case j.hint <- struct{}{}:
	default:
	}
}

// Asked is closed when the first question is over, well or not: from then on waiting for the set gains nothing.
func (j *JWKS) Asked() <-chan struct{} { return j.asked }

// Stats returns how the set is doing.
func (j *JWKS) Stats() JWKSStats {
	s := JWKSStats{Fetches: j.fetches.Load(), Failures: j.failures.Load(), Stale: j.Current() == j.stale}
	if g := j.good.Load(); g != nil {
		s.Keys, s.Others, s.Age = len(g.set.byID), g.others, time.Since(g.at)
	}
	return s
}

// Run asks for the set, at once and then again and again, until ctx ends. Its error is always nil: a server that does not
// answer stops nothing. Call it once.
func (j *JWKS) Run(ctx context.Context) error {
	over := sync.OnceFunc(func() { close(j.asked) })
	defer over()
	for failures := 0; ; {
		start := time.Now()
		select {
		case <-j.hint: // the answer to come is newer
		default:
		}
		err := j.ask(ctx)
		over()
		if ctx.Err() != nil {
			return nil
		}
		failures = j.tell(err, failures)
		hint := j.hint
		if err != nil {
			hint = nil // a server that fails is not asked sooner because somebody forges key ids
		}
		next := time.NewTimer(time.Until(start.Add(j.pause(failures))))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(j.cfg.MinInterval):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		case <-hint:
		}
	}
}

// tell logs how a question ended and returns how many have failed in a row.
func (j *JWKS) tell(err error, failures int) int {
	switch {
	case err != nil && j.Current() == j.stale:
		j.log.Error("jwks: no keys to believe", "url", j.shown, "failures", failures+1, "err", err)
	case err != nil:
		j.log.Warn("jwks: keeping the last good keys", "url", j.shown, "failures", failures+1, "age", time.Since(j.good.Load().at).Round(time.Second), "err", err)
	case failures > 0:
		j.log.Info("jwks: answered again", "url", j.shown, "failures", failures)
	}
	if err != nil {
		return failures + 1
	}
	return 0
}

// ask asks once and keeps a good answer.
func (j *JWKS) ask(ctx context.Context) error {
	j.fetches.Add(1)
	at := time.Now() // before the question: the answer is at least as new
	got, err := j.fetch(ctx)
	if err != nil {
		j.failures.Add(1)
		return err
	}
	set := &Set{byID: got.Keys}
	old := j.good.Load()
	if old != nil && maps.EqualFunc(old.set.byID, got.Keys, (*Key).Equal) {
		set = old.set
	} else {
		j.log.Info("jwks: new keys", "url", j.shown, "keys", slices.Sorted(maps.Keys(got.Keys)), "passed_over", got.Others)
	}
	if len(got.Doubled) > 0 && (old == nil || !slices.Equal(old.doubled, got.Doubled)) { // once, not at each question
		j.log.Warn("jwks: several keys have one id, and none of them holds", "url", j.shown, "ids", got.Doubled)
	}
	j.good.Store(&goodJWKS{set: set, others: got.Others, doubled: got.Doubled, at: at, until: at.Add(j.cfg.MaxStale)})
	return nil
}

// pause returns the time from one question to the next, unless that is shorter than MinInterval: after a good answer so
// that the next question comes within Refresh, else twice as long with each failure, up to a bound.
func (j *JWKS) pause(failures int) time.Duration {
	if failures == 0 {
		return j.cfg.Refresh - rand.N(j.cfg.Refresh/10+1)
	}
	d := min(j.cfg.MinInterval<<min(failures-1, 8), backOffs*j.cfg.MinInterval, j.cfg.Refresh)
	return d + rand.N(d/4+1)
}
