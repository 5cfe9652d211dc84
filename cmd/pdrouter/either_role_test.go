package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/demo"
)

// TestEitherRoleOnThePlane: three engines of either role, as processes on pdrouter's own plane. By chance each is prefill and decode, and serves
// short prompts alone; the policy cost takes what it finds best. Every answer is that of one engine alone.
func TestEitherRoleOnThePlane(t *testing.T) {
	t.Run("random", func(t *testing.T) {
		eitherRole(t, "split: {min_prompt_tokens: 50}, prefill: random, decode: random", 7)
	})
	t.Run("cost", func(t *testing.T) { eitherRole(t, "policy: cost, objective: {ttft: 1s, itl: 5ms}", 1) })
}

// eitherRole asks with a policy. The engines have at least so many roles: prefill or decode of each, and alone.
func eitherRole(t *testing.T, policy string, least int) {
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	f, take, must := bareFleet(t, 3+2*3+1)
	clients, agents, operations := take(), take(), take()
	f.Client, f.Operations = "http://"+clients, "http://"+operations
	for i, tp := range []int{1, 2, 1} {
		e := demo.Engine{Name: fmt.Sprint("engine-", i), Role: "both", TP: tp, Address: take(), Control: take()}
		f.Engines = append(f.Engines, e)
	}
	must(f.WriteKeys())
	config := strings.Replace(f.Config(clients, agents, operations), "split: {min_prompt_tokens: 16}, prefill: round_robin, decode: round_robin", policy, 1)
	must(os.WriteFile(f.Path("pdrouter.yaml"), []byte(config), 0o600))
	must(f.Start("gateway", "serve", "-c", f.Path("pdrouter.yaml")))
	for _, e := range f.Engines {
		must(f.StartEngine(e, agents, "--transport", "tcp", "--decode-us-per-step", "2000", "--prefill-us-per-token", "200"))
	}
	must(f.StartAlone(take()))
	must(f.Wait(ctx))

	body := func(n int) string {
		return fmt.Sprintf(`{"model":%q,"prompt":"%d. %s","max_tokens":40,"ignore_eos":true,"temperature":0}`, demo.Model, n, strings.Repeat("Who goes there? ", 5+n%20))
	}
	type answer struct {
		n               int
		text            string
		prefill, decode string
	}
	answers := make(chan answer)
	const all, atOnce = 60, 4
	for first := range atOnce {
		go func() {
			for n := first; n < all; n += atOnce {
				text, h := askRoute(t, ctx, f.Client+"/v1/completions", body(n))
				answers <- answer{n, wholeText(t, text), h.Get("X-Pdrouter-Prefill"), h.Get("X-Pdrouter-Decode")}
			}
		}()
	}
	roles := map[string]int{}
	for range all {
		a := <-answers
		want, _ := askRoute(t, ctx, f.Alone+"/v1/completions", body(a.n))
		if want = wholeText(t, want); a.text != want {
			t.Errorf("request %d by %q and %q: %q; one engine alone says %q", a.n, a.prefill, a.decode, a.text, want)
		}
		if a.prefill == a.decode {
			t.Errorf("request %d: %s is prefill and decode", a.n, a.prefill)
		}
		if a.prefill == "" {
			roles["alone"]++
		} else {
			roles["prefill "+a.prefill]++
			roles["decode "+a.decode]++
		}
	}
	if len(roles) < least {
		t.Errorf("roles %v; want %d of them", roles, least)
	}
}

// wholeText is the text of a whole answer.
func wholeText(t *testing.T, body string) string {
	t.Helper()
	var a struct{ Choices []struct{ Text string } }
	if err := json.Unmarshal([]byte(body), &a); err != nil || len(a.Choices) != 1 {
		t.Errorf("%v: %s", err, body)
		return ""
	}
	return a.Choices[0].Text
}
