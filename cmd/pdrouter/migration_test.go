package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"pdrouter/internal/demo"
)

// movingFleet is a gateway and two engines of either role with so many ranks, as processes on pdrouter's own plane. A conversation stays at its
// engine, and is moved when that drains. drain has it drain.
func movingFleet(t *testing.T, ctx context.Context, ranks ...int) (f *demo.Fleet, must func(error), drain func(engine string)) {
	t.Helper()
	f, take, must := bareFleet(t, 3+2*len(ranks)+1)
	clients, agents, operations := take(), take(), take()
	f.Client, f.Operations = "http://"+clients, "http://"+operations
	for i, tp := range ranks {
		f.Engines = append(f.Engines, demo.Engine{Name: fmt.Sprint("engine-", i), Role: "both", TP: tp, Address: take(), Control: take()})
	}
	must(f.WriteKeys())
	config := strings.Replace(f.Config(clients, agents, operations), "split: {min_prompt_tokens: 16}, prefill: round_robin, decode: round_robin",
		"split: {min_prompt_tokens: 100000}, decode: session", 1) + "migration: {mode: enabled, min_tokens: 32}\n"
	must(os.WriteFile(f.Path("pdrouter.yaml"), []byte(config), 0o600))
	must(f.Start("gateway", "serve", "-c", f.Path("pdrouter.yaml")))
	for _, e := range f.Engines {
		must(f.StartEngine(e, agents, "--transport", "tcp"))
	}
	must(f.StartAlone(take()))
	must(f.Wait(ctx))
	return f, must, func(engine string) {
		must(os.WriteFile(f.Path("pdrouter.yaml"), []byte(strings.Replace(config, "{name: "+engine+",", "{name: "+engine+", drain: true,", 1)), 0o600))
		reloaded, err := http.Post(f.Operations+"/config/reload", "", nil)
		must(err)
		reloaded.Body.Close()
	}
}

// TestMovesOnThePlane drains one of two engines of either role, as processes on pdrouter's own plane, with one and with two ranks. Its conversations
// are moved to the other one, which has them in its cache and answers as one engine alone would.
func TestMovesOnThePlane(t *testing.T) {
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	f, must, drain := movingFleet(t, ctx, 1, 2)
	const conversations = 8
	var prompts [conversations]string
	var at [conversations]string
	count := map[string]int{}
	turn := func(n int) string {
		body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":24,"ignore_eos":true,"temperature":0}`, demo.Model, prompts[n])
		text, h := askRoute(t, ctx, f.Client+"/v1/completions", body, "X-Session-Id", fmt.Sprint("session ", n))
		want, _ := askRoute(t, ctx, f.Alone+"/v1/completions", body)
		if text, want = wholeText(t, text), wholeText(t, want); text != want {
			t.Errorf("conversation %d: %q; one engine alone says %q", n, text, want)
		}
		prompts[n] += text
		return h.Get("X-Pdrouter-Decode")
	}
	for n := range prompts {
		prompts[n] = fmt.Sprintf("%d. %s", n, strings.Repeat("Who goes there? ", 8+n))
		at[n] = turn(n)
		count[at[n]]++
	}
	gone := "engine-0"
	if count["engine-1"] > count[gone] {
		gone = "engine-1"
	}
	drain(gone)
	counter := func(series string) (n float64) {
		resp, err := http.Get(f.Operations + "/metrics")
		must(err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		must(err)
		_, of, _ := strings.Cut(string(b), series+" ")
		_, _ = fmt.Sscan(of, &n)
		return n
	}
	moved := func() int { return int(counter(`pdrouter_migrations_total{reason="drain",result="moved"}`)) }
	for moved() != count[gone] {
		if ctx.Err() != nil {
			t.Fatalf("%d of %d conversations are moved", moved(), count[gone])
		}
		time.Sleep(20 * time.Millisecond)
	}
	tokens, bytes := counter(`pdrouter_migrated_tokens_total{reason="drain"}`), counter(`pdrouter_migrated_bytes_total{reason="drain"}`)
	if each := bytes / max(tokens, 1); each < 1 || each != math.Trunc(each) {
		t.Errorf("%v bytes of %v tokens were moved", bytes, tokens)
	}
	for n := range prompts {
		if at[n] != gone {
			continue
		}
		prompts[n] += " And then?"
		if e := turn(n); e == gone {
			t.Errorf("conversation %d is served by %s, which drains", n, e)
		}
	}
}

// TestKilledGatewayMovesNothing kills the gateway while the source of a move keeps the KV and the target does not answer. The source frees it by its
// own time, the target keeps nothing, and a gateway that is started then serves the conversation.
func TestKilledGatewayMovesNothing(t *testing.T) {
	t.Parallel() // it waits for the lease of 30 s
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Minute)
	defer stop()
	f, must, drain := movingFleet(t, ctx, 1, 1)
	body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":24,"ignore_eos":true,"temperature":0}`, demo.Model, strings.Repeat("Who goes there? ", 8))
	want, h := askRoute(t, ctx, f.Client+"/v1/completions", body, "X-Session-Id", "one")
	from := h.Get("X-Pdrouter-Decode")
	signal := func(s syscall.Signal) {
		for _, p := range f.Processes {
			if strings.HasPrefix(p.Name, "engine-") && p.Name != from {
				must(p.Cmd.Process.Signal(s))
			}
		}
	}
	held := func() float64 {
		for _, e := range f.Engines {
			if e.Name == from {
				n, err := f.Gauge(ctx, "http://"+e.Address+"/metrics", `refengine_kv_blocks{state="held"}`)
				must(err)
				return n
			}
		}
		return -1
	}
	signal(syscall.SIGSTOP)
	drain(from)
	until(t, "the source keeps the KV for the target", func() bool { return held() > 0 })
	gateway := f.Processes[0]
	must(gateway.Cmd.Process.Kill())
	<-gateway.Done
	f.Processes = f.Processes[1:]
	signal(syscall.SIGCONT)
	must(f.Settled(ctx))
	must(f.Start("gateway", "serve", "-c", f.Path("pdrouter.yaml")))
	must(f.Wait(ctx))
	got, h := askRoute(t, ctx, f.Client+"/v1/completions", body, "X-Session-Id", "one")
	if wholeText(t, got) != wholeText(t, want) || h.Get("X-Pdrouter-Decode") == from {
		t.Errorf("%s answers %s; want %s", h.Get("X-Pdrouter-Decode"), got, want)
	}
	must(f.Settled(ctx))
}
