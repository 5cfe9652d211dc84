package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/suites/replay"
	"pdrouter/policies"
)

// choiceSuite measures the policies.
func choiceSuite() harness.Suite {
	return harness.Suite{Name: "route/choice", Brief: "time of a choice among 10, 100 and 1,000 engines, by policy", Run: func(ctx context.Context, r *harness.Run) error {
		rows, err := choiceRows()
		if err != nil {
			return err
		}
		return r.CompareEach(ctx, rows)
	}}
}

func choiceRows() ([]harness.Versus, error) {
	const usual = "round_robin"
	var rows []harness.Versus
	for _, engines := range []int{10, 100, 1000} {
		limit, err := choices(usual, engines)
		if err != nil {
			return nil, err
		}
		for _, policy := range []string{"random", "least_load", "power_of_two", replay.ByPrefix} {
			run, err := choices(policy, engines)
			if err != nil {
				return nil, err
			}
			rows = append(rows, harness.Versus{Name: fmt.Sprintf("%s, %d engines", policy, engines), Unit: "ns", Beside: usual, Run: run, Limit: limit, Slice: 20 * time.Millisecond})
		}
	}
	return rows, nil
}

// choices has a policy choose n times among so many engines, which are busy to different degrees.
func choices(policy string, engines int) (func(n int) error, error) {
	p, err := policies.New(policies.Config{Default: policies.Choosing{Prefill: policies.Role{Policy: policy}, Decode: policies.Role{Policy: policy}}})
	if err != nil {
		return nil, err
	}
	var f policies.Fleet
	for i := range engines {
		e := policies.Engine{Name: fmt.Sprint("engine-", i), Usable: true, InFlight: i * 7 % 13}
		if i%2 == 0 {
			f.Prefill = append(f.Prefill, e)
		} else {
			f.Decode = append(f.Decode, e)
		}
	}
	turn := uint64(0)
	return func(n int) error {
		for range n {
			turn++
			if c := p.Choose(policies.Request{Model: fake.Model, PromptTokens: 200}, f, policies.Draw{Turn: turn, Random: turn * 0x9e3779b97f4a7c15}); !c.Split {
				return errors.New("bench: nothing was chosen: " + string(c.Reason))
			}
		}
		return nil
	}, nil
}
