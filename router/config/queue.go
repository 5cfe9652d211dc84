package config

import (
	"fmt"
	"time"
)

// The values of Queue.Order.
const (
	OrderFair = "fair"
	OrderFIFO = "fifo"
)

// Queue is the order of the requests that wait for a place with a model's engines. How many may wait, and for how long, say limits.queue and
// timeouts.queue.
type Queue struct {
	// Order is fair or fifo. fair: among requests of one priority, the tenant goes first that has received the least service lately, and of its
	// requests the session that has. Requests of one tenant without sessions go first come, first served. fifo: all of one priority do. Default
	// fair.
	Order string `yaml:"order"`
	// HalfLife is the time after which received service counts half; order fair only. Default 60s.
	HalfLife time.Duration `yaml:"half_life"`
	// Weights are the shares of tenants in the service, by the name of the tenant; order fair only. A tenant of weight 2 gets twice as much as
	// one of weight 1 while both have requests that wait. From 1 to 1000; default 1.
	Weights map[string]int `yaml:"weights"`
	// ByObjective has requests of models with the policy cost wait in the queue until engines have room: until their prompts are computed soon, and
	// streams keep their objective beside them. One that cannot keep its own time to the first token any more is answered with 429 and reason
	// objective; one in sixteen waits for timeouts.queue instead. An idle model always has room. Default false.
	ByObjective bool `yaml:"by_objective"`
}

// maxWeight bounds a weight.
const maxWeight = 1000

func (q Queue) withDefaults() Queue {
	setDefault(&q.Order, OrderFair)
	setDefault(&q.HalfLife, time.Minute)
	return q
}

func (q Queue) validate(v *faults) {
	if q.Order != OrderFair && q.Order != OrderFIFO {
		v.add("queue.order", fmt.Sprintf("is %q", q.Order), "fair or fifo")
	}
	if q.HalfLife < 0 {
		v.add("queue.half_life", "is "+q.HalfLife.String(), "more than 0")
	}
	for tenant, w := range q.Weights {
		if w < 0 || w > maxWeight {
			v.add("queue.weights."+tenant, fmt.Sprintf("is %d", w), fmt.Sprintf("1 to %d", maxWeight))
		}
	}
}
