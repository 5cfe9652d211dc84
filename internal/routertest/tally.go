package routertest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pdrouter/router"
	"pdrouter/router/dispatch"
	"pdrouter/router/report"
)

// tally is what a router answered and counted in one test: make faults prints it beside the row.
type tally struct {
	mu sync.Mutex
	n  map[ended]int
}

// ended is one kind of end. It is a value, so that it costs no memory where allocations are counted.
type ended struct {
	status       int
	what, reason string
}

func (e ended) String() string {
	out := e.what
	if e.status != 0 {
		out = fmt.Sprintf("%d %s", e.status, e.what)
	}
	if e.reason != "" {
		out += " " + e.reason
	}
	return out
}

func (c *tally) add(e ended) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[ended]int{}
	}
	c.n[e]++
}

// watch has the router's answers ended, besides whoever counts them already.
func (c *tally) watch(parts *router.Parts) {
	observe, refused := parts.Observe, parts.Refused
	parts.Observe = func(s report.Summary) {
		e := ended{status: int(s.Status), what: s.Outcome.String()}
		if s.Outcome != dispatch.Completed {
			e.reason = s.Reason
		}
		c.add(e)
		if s.Attempts > 1 {
			c.add(ended{what: "retried"})
		}
		if s.Leaked {
			c.add(ended{what: "leaked"})
		}
		observe(s)
	}
	parts.Refused = func(status int, why string) {
		c.add(ended{status, "refused", why})
		if refused != nil {
			refused(status, why)
		}
	}
}

// tell logs it in the form that make faults reads.
func (c *tally) tell(t testing.TB) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for e, n := range c.n {
		what := e.String()
		if n > 1 {
			what += fmt.Sprintf(" ×%d", n)
		}
		all = append(all, what)
	}
	slices.Sort(all)
	if len(all) > 0 {
		t.Logf("counted: %s", strings.Join(all, ", "))
	}
}
