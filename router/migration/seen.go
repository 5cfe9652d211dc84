package migration

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Shown is one move, or moves that wait in one lane, for people.
type Shown struct {
	Began   time.Time `json:"began_at,omitzero"` // zero while it waits
	Reason  string    `json:"reason"`
	State   string    `json:"state"` // waiting, running, or the result
	From    string    `json:"from"`
	To      string    `json:"to"` // "": the policy says so when it begins
	Moves   int       `json:"moves"`
	Tokens  int       `json:"tokens"`
	Seconds float64   `json:"seconds"` // that it took, or has taken so far
}

// mostRecent is how many moves that are over are shown.
const mostRecent = 32

// seen are the moves that are shown. Plans.mu guards it.
type seen struct {
	running map[*Planned]Shown
	recent  []Shown // what ended last is last
}

// endedLocked notes a move that is over, or that there is not. Those that nobody asked for are not shown: there may be very many of them.
func (s *seen) endedLocked(e Ended, now time.Time) {
	if e.Result == Short || e.Result == Idle {
		return
	}
	if len(s.recent) == mostRecent {
		s.recent = slices.Delete(s.recent, 0, 1)
	}
	s.recent = append(s.recent, Shown{now.Add(-e.Took), e.Reason.String(), e.Result.String(), e.From, e.To, 1, e.Tokens, e.Took.Seconds()})
}

// shownLocked are the moves that run, those that wait, and the latest that are over, the last first.
func (p *Plans) shownLocked(now time.Time) []Shown {
	out := make([]Shown, 0, len(p.seen.running)+len(p.lanes)+len(p.seen.recent))
	for _, s := range p.seen.running {
		s.Seconds = now.Sub(s.Began).Seconds()
		out = append(out, s)
	}
	for l, q := range p.lanes {
		if len(q.waiting) == 0 {
			continue
		}
		s := Shown{Reason: l.reason.String(), State: "waiting", From: l.from.Name, To: nameOf(l.to), Moves: len(q.waiting)}
		for _, t := range q.waiting {
			s.Tokens += t.tokens
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Shown) int {
		return cmp.Or(cmp.Compare(a.State, b.State), a.Began.Compare(b.Began), strings.Compare(a.From, b.From), strings.Compare(a.To, b.To), strings.Compare(a.Reason, b.Reason))
	})
	for _, s := range slices.Backward(p.seen.recent) {
		out = append(out, s)
	}
	return out
}
