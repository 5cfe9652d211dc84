//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"sync"
	"testing"
)

// TestVLLMEitherRole has three engines of either role on the plane serve conversations under the policy cost, and reads from the engines' counters
// that each did what the gateway says that it decided: who computed how much of a prompt, who was handed it, and who had it. Three engines on two
// CPUs take long, so it is not of the tests that CI runs: make e2e-vllm-long.
func TestVLLMEitherRole(t *testing.T) {
	v := prepare(t, "full")
	v.step(t, "make the wheel and install it", func() { v.wheel(t) })
	w := newPlane(t, v, "full")
	w.policy = "policy: {default: {policy: cost}}\n"
	w.step(t, "start three engines and the gateway", func() {
		for range 3 {
			w.add(t, "both")
		}
		w.joined(t)
	})
	look := func() (out []map[string]float64) {
		w.rests(t)
		for _, m := range w.both {
			out = append(out, bySource(t, m))
		}
		return out
	}
	const conversations, turns, clients, first, news = 9, 5, 3, 600, 180
	before, asked := look(), len(w.front.requests(t))
	w.step(t, "conversations of five turns", func() {
		var all sync.WaitGroup
		for client := range clients {
			all.Go(func() {
				var prompts [conversations / clients][]uint32
				for turn := range turns {
					for i := range prompts {
						n := news
						if turn == 0 {
							n = first
						}
						for k := range n {
							prompts[i] = append(prompts[i], uint32(20+(1+client+clients*i)*(k+7*turn)%200))
						}
						prompts[i], _ = w.front.completes(t, prompts[i], fmt.Sprint("talk ", client, " ", i))
					}
				}
			})
		}
		all.Wait()
	})
	after := look()
	decisions := w.front.requests(t)
	if decisions = decisions[:len(decisions)-asked]; len(decisions) != conversations*turns {
		t.Fatalf("%d requests are told of; want %d", len(decisions), conversations*turns)
	}
	paths, predicted, counted, wrong := map[string]int{}, 0, 0, 0.0
	index := map[string]int{}
	for i, m := range w.both {
		index[m.name] = i
	}
	type part struct{ legs, tokens, computed, handed int } // of an engine, by what the gateway says
	parts := make([]part, len(w.both))
	for _, r := range decisions {
		computes := r.Decode
		if r.Prefill != "" {
			computes = r.Prefill
			to := &parts[index[r.Decode]]
			to.legs, to.tokens, to.handed = to.legs+1, to.tokens+r.Prompt, to.handed+1
			paths["split"]++
		} else {
			paths["alone"]++
		}
		by := &parts[index[computes]]
		by.legs, by.tokens, by.computed = by.legs+1, by.tokens+r.Prompt, by.computed+r.Prompt-r.Counted
		predicted, counted, wrong = predicted+r.Predicted, counted+r.Counted, wrong+math.Abs(float64(r.Predicted-r.Counted))
	}
	t.Logf("paths: %v; %d cached tokens predicted, %d counted, wrong by %.0f (%.1f %%)", paths, predicted, counted, wrong, 100*wrong/float64(counted))
	for i, is := range parts {
		grew := map[string]float64{}
		sum := 0.0
		for source, n := range after[i] {
			grew[source] = n - before[i][source]
			sum += grew[source]
		}
		t.Logf("%s: by the gateway %+v; by its counters %v", w.both[i].name, is, grew)
		if sum != float64(is.tokens) {
			t.Errorf("%s accounts for %v prompt tokens; want %d", w.both[i].name, sum, is.tokens)
		}
		if c := grew["local_compute"]; c < float64(is.computed) || c > float64(is.computed+is.handed) { // of what it is handed it may compute the last token
			t.Errorf("%s has computed %v tokens; the gateway says %d", w.both[i].name, c, is.computed)
		}
		if (grew["external_kv_transfer"] > 0) != (is.handed > 0) {
			t.Errorf("%s had %v tokens from others; by the gateway it was handed %d prompts", w.both[i].name, grew["external_kv_transfer"], is.handed)
		}
	}
	if least := conversations * (turns - 1) * first / 2; counted < least {
		t.Errorf("%d tokens were cached; want at least %d, if conversations stay where they are", counted, least)
	}
	if err := w.front.stop(t, slow); err != nil {
		t.Errorf("pdrouter after SIGTERM: %v", err)
	}
}
