package fanout

import (
	"sync"

	"pdrouter/router/dispatch"
	"pdrouter/router/exchange"
	"pdrouter/router/openai"
	"pdrouter/router/openai/choices"
	"pdrouter/router/reason"
)

// New is a stream of two choices: take gives it an event of one of them, ended is what its client got and how it ended.
func New() (take func(choice int, event []byte) bool, ended func() (string, dispatch.Outcome)) {
	f := begun(choices.NewMerger(1, 2))
	return func(choice int, event []byte) bool { return f.add(choice, &exchange.Exchange{}, event) },
		func() (string, dispatch.Outcome) { return string(f.out), f.sum.Outcome }
}

// NewPanicking is such a stream whose events cannot be merged: take panics. fail is what the branch does then; it returns what the client got
// and how the stream ended.
func NewPanicking() (take func(), fail func() (string, dispatch.Outcome)) {
	f := begun(nil)
	return func() { f.add(0, &exchange.Exchange{}, nil) }, func() (string, dispatch.Outcome) {
		f.fail(reason.Panic, openai.ErrInternal(nil))
		return string(f.out), f.sum.Outcome
	}
}

// begun is the stream of two choices that have begun.
func begun(m *choices.Merger) *Fan {
	f := &Fan{stream: true, open: 3, merge: m, engines: make([]branchEngines, 2)}
	f.changed = sync.NewCond(&f.mu)
	f.sum.Status = 200
	for range 2 {
		f.branches = append(f.branches, &exchange.Exchange{})
	}
	return f
}
