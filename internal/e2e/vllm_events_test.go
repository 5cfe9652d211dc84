//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/background"
	"pdrouter/metadata"
	"pdrouter/metadata/handshake"
	"pdrouter/policies"
	"pdrouter/policies/blocks"
	routerconfig "pdrouter/router/config"
	"pdrouter/router/fleet"
	"pdrouter/router/kvevents"
)

// blockTokens is the block size of the engines here.
const blockTokens = 32

// TestStockVLLMEvents follows the KV events of stock vLLM: before each turn of a conversation the index says how many tokens of the prompt the
// engine will take from its cache, and the engine then says how many it has taken. Turns with and without a salt, a reset of the cache, a
// gateway that starts late, and an engine that is killed and started again, with the other form of hashes. In the end two engines
// serve two gateways in turn; the second one knows of conversations by replayed events alone.
func TestStockVLLMEvents(t *testing.T) {
	v := prepare(t, "full")
	at, events := freeAddresses(t, 2), freeAddresses(t, 2)
	launch := func(is role) (e engine) {
		v.step(t, "start an engine", func() {
			is.name, is.events = "events", events
			e = v.engine(t, is, at)
			e.up(t)
		})
		return e
	}
	e := launch(role{forgets: true})
	talk := &conversation{url: e.url}
	talk.turn(t, "") // before anybody hears it
	x := follow(t, e.url, events)
	v.step(t, "turns of a conversation", func() {
		for range 4 {
			talk.predicted(t, x, "", true)
		}
	})
	v.step(t, "the same with a salt", func() {
		talk.predicted(t, x, "salty", false)
		talk.predicted(t, x, "salty", true)
		talk.predicted(t, x, "other", false)
		talk.predicted(t, x, "", true)
	})
	v.step(t, "a second gateway that starts late", func() {
		late := follow(t, e.url, events)
		talk.predicted(t, late, "", true)
		talk.predicted(t, late, "salty", true)
		talk.known(t, x, "")
	})
	v.step(t, "the cache is reset", func() {
		askJSON(t, e.url+"/reset_prefix_cache", nil, nil)
		(&conversation{url: e.url}).turn(t, "flush") // the engine publishes with its steps, and takes none without requests
		until(t, slow, "nothing is cached", func() bool { return x.held(talk.last, "") == 0 })
		talk.predicted(t, x, "", false)
		talk.predicted(t, x, "", true)
	})
	v.step(t, "the engine is killed", func() {
		e.kill()
		until(t, slow, "a dead engine has nothing", func() bool { return x.held(talk.last, "") == 0 })
	})
	e = launch(role{bytes: true, blocks: 90})
	v.step(t, "another run of it", func() {
		until(t, slow, "the engine is followed", func() bool { return x.stats().Live })
		talk.predicted(t, x, "", false)
		talk.predicted(t, x, "", true)
		talk.predicted(t, x, "salty", false)
	})
	v.step(t, "blocks are evicted", func() {
		other := &conversation{url: e.url}
		for x.held(talk.cached[""], "") == len(talk.cached[""])/blockTokens*blockTokens {
			other.predicted(t, x, "another", len(other.messages) > 0)
		}
		if n := talk.asked(t, x, ""); n == 0 {
			t.Error("nothing is left of the first conversation; want a part of it")
		}
	})
	v.step(t, "a gateway that starts late sends conversations where they are", func() { v.goesOn(t, e, events) })
	s := x.stats()
	t.Logf("%+v", s)
	if s.DecodeErrors != 0 || s.Orphans != 0 || s.Refused != 0 || s.Gaps != 0 {
		t.Errorf("%+v; want no errors, orphans and gaps", s)
	}
}

// follower is the gateway's part that follows engines, without the gateway.
type follower struct {
	fleet *fleet.Fleet
	feed  *kvevents.Feed
}

// follow follows an engine until the test ends.
func follow(t *testing.T, url string, events []string) follower {
	t.Helper()
	cfg := routerconfig.Config{Models: []routerconfig.Model{{Name: "tiny", Engines: []routerconfig.Engine{{Name: "e", URL: url,
		KVEvents: routerconfig.KVEvents{Endpoint: "tcp://" + events[0], ReplayEndpoint: "tcp://" + events[1]}}}}}}.WithDefaults()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	registry, err := handshake.New(handshake.Config{}, func(context.Context, metadata.Pair) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	index := blocks.New(100_000)
	f, err := fleet.New(cfg, fleet.Parts{Planner: policies.Default(), Handshakes: registry, Blocks: index, Log: log}, new(fleet.Fleet), routerconfig.NewSecrets(nil))
	if err != nil {
		t.Fatal(err)
	}
	f.Begin(cfg, new(fleet.Fleet))
	x := follower{f, kvevents.New(log, index, background.NewTasks(log, nil), func() *fleet.Fleet { return f })}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		x.feed.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		registry.Close()
	})
	until(t, slow, "the engine is followed", func() bool { return x.stats().Live })
	return x
}

func (x follower) stats() kvevents.Stats {
	for _, s := range x.feed.Stats() {
		return s
	}
	return kvevents.Stats{}
}

// held is how many leading tokens of a prompt the engine has, by the index.
func (x follower) held(tokens []uint32, salt string) int {
	var found blocks.Found
	x.fleet.FindBlocks(&blocks.Prompt{Model: "tiny", Tokens: tokens, Salt: salt}, &found)
	held, _, _ := x.fleet.Engine("e").Held(&found)
	return int(held[blocks.Device])
}

// conversation is one that grows with every turn.
type conversation struct {
	url      string
	messages []map[string]string
	last     []uint32            // the tokens of the last prompt and answer that are cached with their salt
	cached   map[string][]uint32 // by salt
}

// tokens are those of the prompt of the next turn, by the engine.
func (c *conversation) tokens(t *testing.T) []uint32 {
	t.Helper()
	var out struct{ Tokens []uint32 }
	askJSON(t, c.url+"/tokenize", map[string]any{"model": "tiny", "messages": c.next()}, &out)
	return out.Tokens
}

// next are the messages of the next turn.
func (c *conversation) next() []map[string]string {
	n := len(c.messages)
	return append(c.messages[:n:n], map[string]string{"role": "user", "content": fmt.Sprintf("turn %d: %s", n, strings.Repeat("what is behind the door? ", 2))})
}

// turn sends the next turn and returns how many tokens of its prompt the engine has taken from its cache.
func (c *conversation) turn(t *testing.T, salt string) (cached int) {
	t.Helper()
	body := map[string]any{"model": "tiny", "messages": c.next(), "max_tokens": 20, "temperature": 0, "return_token_ids": true, "ignore_eos": true}
	if salt != "" {
		body["cache_salt"] = salt
	}
	var out struct {
		Prompt  []uint32 `json:"prompt_token_ids"`
		Choices []struct {
			Message struct{ Content string }
			IDs     []uint32 `json:"token_ids"`
		}
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	askJSON(t, c.url+"/v1/chat/completions", body, &out)
	if c.cached == nil {
		c.cached = map[string][]uint32{}
	}
	c.last = append(out.Prompt, out.Choices[0].IDs...)
	c.cached[salt] = c.last[:len(c.last)-1] // the last token was sampled, and not computed
	c.messages = append(c.next(), map[string]string{"role": "assistant", "content": out.Choices[0].Message.Content})
	return out.Usage.Details.Cached
}

// known waits until the index has all that the engine has stored of the last turn with this salt.
func (c *conversation) known(t *testing.T, x follower, salt string) {
	t.Helper()
	all := c.cached[salt]
	until(t, slow, "the blocks of the last turn are known", func() bool { return x.held(all, salt) == len(all)/blockTokens*blockTokens })
}

// predicted asks the index what the engine will have of the next turn's prompt, then sends it. hit says that it must be something.
func (c *conversation) predicted(t *testing.T, x follower, salt string, hit bool) {
	t.Helper()
	if hit {
		c.known(t, x, salt)
	}
	if want := c.asked(t, x, salt); hit != (want >= blockTokens) {
		t.Errorf("salt %q: %d tokens are cached; want some: %v", salt, want, hit)
	}
	c.known(t, x, salt)
}

// asked asks the index what the engine has of the next turn's prompt, sends it, and returns what the index has said.
func (c *conversation) asked(t *testing.T, x follower, salt string) (want int) {
	t.Helper()
	prompt := c.tokens(t)
	want = min(x.held(prompt, salt), (len(prompt)-1)/blockTokens*blockTokens)
	got := c.turn(t, salt)
	t.Logf("salt %q: %d prompt tokens, %d predicted, %d cached", salt, len(prompt), want, got)
	if got != want {
		t.Errorf("salt %q: the engine has taken %d of %d tokens from its cache; the index has said %d", salt, got, len(prompt), want)
	}
	return want
}

// askJSON sends a body as JSON and reads the answer.
func askJSON(t *testing.T, url string, body, into any) {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Timeout: 2 * time.Minute}
	a, err := client.Post(url, "application/json", bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	said, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v: %s", url, a.StatusCode, err, said)
	}
	if into != nil {
		if err := json.Unmarshal(said, into); err != nil {
			t.Fatalf("%s: %v: %s", url, err, said)
		}
	}
}
