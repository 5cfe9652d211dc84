package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"pdrouter/kvplane/plan"
	"pdrouter/kvplane/transport"
	"pdrouter/metadata"
)

// host is what an agent's owner asks of the machine that it runs on. Everything else that it learns comes from its
// transport and its inbox, so that with a host of their own many owners run in one simulation.
type host struct {
	now    func() time.Duration // since the agent's start, never 0
	ask    asker
	agree  transport.Agreement         // with the private part of the key that the agent's record names
	exited func(metadata.Process) bool // the process is proven dead; it shares this one's kernel and namespaces
}

// asker looks an engine up in the directory and hands the answer back to the owner, later. It does not wait.
type asker func(inc metadata.Incarnation, then func([]metadata.Record, error))

// lookups asks a Directory off the owner's goroutine.
type lookups struct {
	ctx       context.Context // ends with the agent
	directory Directory
	timeout   time.Duration
	post      func(func()) // the owner's inbox
	tasks     sync.WaitGroup
}

func (l *lookups) ask(inc metadata.Incarnation, then func([]metadata.Record, error)) {
	l.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(l.ctx, l.timeout)
		defer cancel()
		records, err := l.directory.Engine(ctx, inc)
		l.post(func() { then(records, err) })
	})
}

// lookup asks for the records of all ranks of an incarnation, in the order of its ranks.
func (o *owner) lookup(inc metadata.Incarnation, then func([]metadata.Record, error)) {
	o.host.ask(inc, func(records []metadata.Record, err error) {
		if err == nil {
			records, err = plan.Ranks(records)
		}
		if err == nil && records[0].Incarnation != inc {
			err = fmt.Errorf("kvplane: the records are of %s; want %s", records[0].ID(), inc.ID())
		}
		then(records, err)
	})
}

// clock counts from a start and is never 0.
func clock(start time.Time) func() time.Duration {
	return func() time.Duration { return time.Since(start) + 1 }
}
