package router_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/refengine"
	"pdrouter/internal/refengine/refenginetest"
	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/report"
)

// splits is the policy cost, whose every choice is the first pair.
type splits struct{ *policies.Policy }

func (s splits) Choose(q policies.Request, f policies.Fleet, d policies.Draw) policies.Choice {
	c := s.Policy.Choose(q, f, d)
	c.Split, c.Prefill, c.Decode, c.Reason = true, 0, 0, policies.Split
	return c
}

// TestFirstTokenPartsOfReferenceEngines holds what the gateway thinks of the parts of the time to the first token against what the engines know: in
// the mean of the split requests of some bursts each part is right to a quarter of the time to the first token. The sum is exact. It is so whatever the policy is.
func TestFirstTokenPartsOfReferenceEngines(t *testing.T) {
	cost, err := policies.Parse("p.yaml", []byte("default: {policy: cost}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name    string
		planner fleet.Planner
		asked   int // of each burst, prompts that were asked before
	}{{"cost", splits{cost}, 0}, {"roles", routertest.Roles(t), 0}, {"roles, cached prompts", routertest.Roles(t), 2}} {
		t.Run(row.name, func(t *testing.T) { firstTokenParts(t, row.planner, row.asked) })
	}
}

func firstTokenParts(t *testing.T, p fleet.Planner, asked int) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		pull := new(refengine.Pull)
		m := config.Model{Name: "tiny", Connector: connector.NamePull}
		var mu sync.Mutex
		truth, legs := map[string]float64{}, 0
		timed := func(x refengine.Times) {
			mu.Lock()
			defer mu.Unlock()
			switch x.Leg {
			case refengine.ExportLeg:
				legs++
				truth["prefill_queue"] += x.Began.Sub(x.Submitted).Seconds()
				truth["prefill_compute"] += x.First.Sub(x.Began).Seconds()
			case refengine.ImportLeg:
				truth["transfer"] += x.Received.Sub(x.Submitted).Seconds()
				truth["decode_queue"] += x.Began.Sub(x.Received).Seconds()
				truth["first_step"] += x.First.Sub(x.Began).Seconds()
			}
		}
		for _, name := range []string{"p", "d"} {
			c := refengine.Config{Name: name, Model: "tiny", Pull: pull, MaxModelLen: 8192, Shape: refengine.Shape{Layers: 1, Heads: 1, HeadDim: 2}, PrefillCost: 50 * time.Microsecond, DecodeCost: 5 * time.Millisecond,
				MaxStep: 256, Timed: timed, Faults: []refengine.Fault{{Leg: refengine.ImportLeg, Nth: -1, Do: refengine.Late, Wait: 20 * time.Millisecond}}}
			entry := config.Engine{Name: name, URL: "http://" + refenginetest.RunOn(t, n.Listen(), c).Addr}
			if name == "p" {
				m.Prefill = []config.Engine{entry}
			} else {
				m.Decode = []config.Engine{entry}
			}
		}
		g := routertest.StartIn(t, n, config.Config{Models: []config.Model{m}, Timeouts: config.Timeouts{Health: time.Minute}}, router.Parts{Planner: p})
		g.WaitWarm()
		const bursts, size = 30, 4
		for i := range bursts {
			if i == bursts/2 { // by then the speeds are learned
				mu.Lock()
				clear(truth)
				legs = 0
				mu.Unlock()
			}
			var all sync.WaitGroup
			for k := range size {
				of := i
				if k < asked {
					of = 0
				}
				all.Go(func() {
					r := g.Post(routertest.PathCompletions, fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":8,"ignore_eos":true,"stream":true}`, strings.Repeat(fmt.Sprintf("%d.%d ", of, k), 250)))
					if r.Status != 200 {
						t.Errorf("status %d: %s", r.Status, r.Body)
					}
				})
			}
			all.Wait()
			time.Sleep(2 * time.Second)
		}
		w := httptest.NewRecorder()
		g.Router.Operations().ServeHTTP(w, httptest.NewRequest("GET", fmt.Sprintf("/requests?limit=%d", bursts/2*size), nil))
		var shown []report.Shown
		if err := json.Unmarshal(w.Body.Bytes(), &shown); err != nil {
			t.Fatal(err)
		}
		thought, split, first := map[string]float64{}, 0, 0.0
		for _, s := range shown {
			sum := 0.0
			for _, part := range s.First {
				sum += part.Seconds
				if s.Prefill != "" {
					thought[part.Part] += part.Seconds
				}
			}
			if math.Abs(sum-s.Phases.FirstToken.Seconds()) > 1e-6 {
				t.Errorf("%s: the parts add up to %v s; want %v", s.RequestID, sum, s.Phases.FirstToken)
			}
			if s.Prefill != "" {
				if len(s.First) != 6 {
					t.Errorf("%s: the parts are %+v; want six", s.RequestID, s.First)
				}
				split, first = split+1, first+s.Phases.FirstToken.Seconds()
			}
		}
		signals := g.Router.Stats().Scalings
		if len(signals) != 1 || signals[0].TTFT <= 0 || signals[0].ITL <= 0 || signals[0].Roles[0].Work <= 0 {
			t.Errorf("scaling signals %+v", signals)
		}
		mu.Lock()
		defer mu.Unlock()
		if split < size || split != legs {
			t.Fatalf("%d requests are split, %d legs", split, legs)
		}
		first /= float64(split)
		for _, part := range []string{"prefill_queue", "prefill_compute", "transfer", "decode_queue", "first_step"} {
			is, was := thought[part]/float64(split), truth[part]/float64(legs)
			t.Logf("%-16s %6.1f ms thought, %6.1f ms by the engines, in the mean of %d requests", part, 1e3*is, 1e3*was, split)
			if math.Abs(is-was) > .25*first {
				t.Errorf("%s: %.1f ms; want %.1f, to a quarter of %.1f", part, 1e3*is, 1e3*was, 1e3*first)
			}
		}
	})
}
