package fanout

import (
	"sync"

	"pdrouter/router/dispatch"
	"pdrouter/router/exchange"
	"pdrouter/router/openai/choices"
)

// New is a stream of two choices: take gives it an event of one of them, ended is what its client got and how it ended.
func New() (take func(choice int, event []byte) bool, ended func() (string, dispatch.Outcome)) {
	f := &Fan{stream: true, open: 3, merge: choices.NewMerger(1, 2), served: make([]servedBy, 2)}
	f.changed = sync.NewCond(&f.mu)
	f.sum.Status = 200
	for range 2 {
		f.branches = append(f.branches, &exchange.Exchange{})
	}
	return func(choice int, event []byte) bool { return f.add(choice, &exchange.Exchange{}, event) },
		func() (string, dispatch.Outcome) { return string(f.out), f.sum.Outcome }
}
