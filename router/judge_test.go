package router

import (
	"sync"
	"testing"
	"time"

	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// TestJudgeHoldsOneLock judges engines as the requests before and after a reload do that names them in another order.
func TestJudgeHoldsOneLock(t *testing.T) {
	cfg := func(names ...string) config.Config {
		c := config.Config{Models: []config.Model{{Name: "m", Connector: connector.NameNone}}}
		for _, name := range names {
			c.Models[0].Engines = append(c.Models[0].Engines, config.Engine{Name: name, URL: "http://127.0.0.1:1/" + name})
		}
		return c
	}
	r, err := New(cfg("a", "b", "c"), Parts{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	before := r.now().fleet.models["m"].decode
	if err := r.Apply(cfg("c", "b", "a"), Parts{}); err != nil {
		t.Fatal(err)
	}
	after := r.now().fleet.models["m"].decode
	if before[0] != after[2] {
		t.Fatal("the engines are others")
	}
	var wg sync.WaitGroup
	for _, engines := range [][]*engine{before, after} {
		wg.Go(func() {
			for range 20_000 {
				r.now().fleet.judge(engines, time.Now())
			}
		})
	}
	wg.Wait()
}
