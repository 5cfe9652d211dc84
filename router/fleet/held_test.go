package fleet

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pdrouter/policies"
	"pdrouter/policies/blocks"
	"pdrouter/router/config"
	"pdrouter/router/openai"
	"pdrouter/router/tokens"
)

// heldRig is a fleet whose engines may publish their blocks, of 4 tokens.
type heldRig struct {
	t     *testing.T
	fleet *Fleet
	index *blocks.Index
	next  uint64 // the name of the next block
}

// newHeldRig has three engines: a and b publish, c does not. b's events do not come.
func newHeldRig(t *testing.T) *heldRig {
	t.Helper()
	by := policies.Role{Policy: "prefix"}
	planner, err := policies.New(policies.Config{Default: policies.Choosing{Policy: "roles", Prefill: by, Decode: by}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := ofEngines("a", "b", "c")
	for i := range 2 {
		cfg.Models[0].Engines[i].KVEvents = config.KVEvents{Endpoint: fmt.Sprint("tcp://127.0.0.1:", i+1)}
	}
	r := &heldRig{t: t, index: blocks.New(100_000), next: 1}
	r.fleet = fleetOf(t, cfg, Parts{Planner: planner, Blocks: r.index, Tokens: tokens.New(1 << 20)}, nil)
	h := r.index.Join()
	r.index.Show(h, true)
	r.fleet.Engine("a").SetHolder(&h)
	return r
}

// store has a have whole blocks of these tokens.
func (r *heldRig) store(lora, salt string, ids []uint32) {
	b := &blocks.Blocks{Size: 4, Model: "m", LoRA: lora, Salt: salt, Tokens: ids[:len(ids)/4*4]}
	for range len(ids) / 4 {
		b.Handles = append(b.Handles, r.next)
		r.next++
	}
	r.index.Store(*r.fleet.Engine("a").holder.Load(), b)
}

// asker is who asks.
type asker struct{ tenant, salt, adapter string }

// body is a request of the asker's. sealer may be nil.
func (r *heldRig) body(s openai.Shape, q asker, sealer *openai.Sealer, members string) *openai.Body {
	r.t.Helper()
	model := "m"
	if q.adapter != "" {
		model = q.adapter
	}
	if q.salt != "" {
		members += fmt.Sprintf(`,"cache_salt":%q`, q.salt)
	}
	b, bad := openai.ParseBody(s, fmt.Appendf(nil, `{"model":%q,%s}`, model, members), openai.Limits{})
	if bad != nil {
		r.t.Fatal(bad)
	}
	if sealer != nil {
		b.Sealed = sealer.Seal(q.tenant, b.Salt)
	}
	return b
}

// find looks for a prompt.
func (r *heldRig) find(q asker, b *openai.Body) *Selection {
	k := new(Selection)
	k.Init(r.fleet, r.fleet.Models["m"], b.Shape, nil, q.adapter, 0)
	k.FindPrompt(b, q.tenant)
	return k
}

// said is what each engine has of the prompt, and how that is known.
func (r *heldRig) said(q asker, b *openai.Body) string {
	k := r.find(q, b)
	defer k.ForgetPrompt()
	var out []string
	for _, e := range r.fleet.Engines {
		out = append(out, fmt.Sprint(k.Cached(e), " by ", k.cachedBy(e)))
	}
	return strings.Join(out, ", ")
}

func ids(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i + 1)
	}
	return out
}

func list(ids []uint32) string { return strings.ReplaceAll(fmt.Sprint(ids), " ", ",") }

// chatOf are the messages of a conversation, each of 400 bytes or more.
func chatOf(n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(`{"role":%q,"content":"%d %s"}`, []string{"user", "assistant"}[i%2], i, strings.Repeat("word ", 80)))
	}
	return `"messages":[` + strings.Join(out, ",") + `]`
}

// TestLeftOut: what the index has left out of an engine's reports, as blocks before were unknown or it was full, the engine may have. So the estimate
// counts where it says more, until nothing was left out for long.
func TestLeftOut(t *testing.T) {
	r, me := newHeldRig(t), asker{}
	prompt := r.body(openai.ShapeCompletions, me, nil, `"prompt":`+list(ids(400)))
	k := r.find(me, r.body(openai.ShapeCompletions, me, nil, `"prompt":`+list(ids(330)))) // its beginning
	k.NotePrompt(policies.Choice{Decode: 0})
	k.ForgetPrompt()
	want := func(when, want string) {
		t.Helper()
		if got := r.said(me, prompt); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s; want %s", when, got, want)
		}
	}
	want("all was taken", "0 by events")
	h := *r.fleet.Engine("a").holder.Load()
	r.index.Store(h, &blocks.Blocks{Handles: []uint64{1 << 40}, Parent: 1 << 41, HasParent: true, Size: 4, Model: "m", Tokens: ids(4)})
	want("after an orphan", "274 by estimate")
	r.store("", "", ids(402))
	want("more is reported than estimated", "396 by events")
	r.index.Clear(h)
	want("after all was forgotten", "0 by events")
	r.index.Store(h, &blocks.Blocks{Handles: []uint64{1 << 40}, Parent: 1 << 41, HasParent: true, Size: 4, Model: "m", Tokens: ids(4)})
	r.store("", "", ids(40_400)[400:])
	want("all was taken for long", "0 by events")
	r.index.SetBound(1)
	r.store("", "", ids(402))
	want("the index is full", "274 by estimate")
}

// TestCachedByEvents: of a prompt whose token ids are known, an engine whose events come has what it says, in whole blocks and never the last
// token; others have what they were asked, as long as they were.
func TestCachedByEvents(t *testing.T) {
	r, me := newHeldRig(t), asker{}
	numbers := func(n int) *openai.Body {
		return r.body(openai.ShapeCompletions, me, nil, `"prompt":`+list(ids(n)))
	}
	r.store("", "", ids(402))
	k := r.find(me, numbers(400))
	if n, byEvents, known := k.Predicted(policies.Choice{Decode: 0}); n != 396 || !byEvents || !known {
		t.Errorf("%d tokens, by events: %v, known: %v; want 396, as the last token is computed", n, byEvents, known)
	}
	if _, toCompute, _ := k.NotePrompt(policies.Choice{Decode: 0}); toCompute != 4 {
		t.Errorf("a has %d tokens to compute; want 4", toCompute)
	}
	k.NotePrompt(policies.Choice{Decode: 1})
	k.NotePrompt(policies.Choice{Decode: 2})
	k.ForgetPrompt()
	for n, want := range map[int]string{
		400: "396 by events, 399 by estimate, 399 by estimate",
		402: "400 by events", 401: "400 by events", 404: "400 by events", 1: "0 by estimate, 0 by estimate",
	} {
		if got := r.said(me, numbers(n)); !strings.HasPrefix(got, want) {
			t.Errorf("%d tokens: %s; want %s", n, got, want)
		}
	}

	turn := func(n int) *openai.Body { return r.body(openai.ShapeChat, me, nil, chatOf(n)) }
	if got := r.said(me, turn(1)); got != "0 by estimate, 0 by estimate, 0 by estimate" {
		t.Errorf("a chat whose ids are not known: %s", got)
	}
	r.fleet.tokens.Learn(tokens.PromptOf("m", "", turn(3)), ids(302))
	for n, want := range map[int]string{3: "300 by events, 0 by estimate", 4: "300 by events, 0 by estimate", 7: "0 by estimate, 0 by estimate"} { // ids that are likely count, if most are known
		if got := r.said(me, turn(n)); !strings.HasPrefix(got, want) {
			t.Errorf("%d messages: %s; want %s", n, got, want)
		}
	}
	r.index.Clear(*r.fleet.Engine("a").holder.Load())
	k = r.find(me, turn(4))
	k.NotePrompt(policies.Choice{Decode: 0})
	k.ForgetPrompt()
	if got := r.said(me, turn(4)); !strings.HasPrefix(got, "0 by events") {
		t.Errorf("%s; want what was evicted to be gone though the engine was asked it", got)
	}
	r.fleet.Engine("a").SetHolder(nil)
	k = r.find(me, turn(4))
	if n, byEvents, known := k.Predicted(policies.Choice{Decode: 0}); n == 0 || byEvents || !known {
		t.Errorf("%d tokens, by events: %v, known: %v; want an estimate", n, byEvents, known)
	}
	k.ForgetPrompt()
	if got := r.said(me, turn(4)); strings.HasPrefix(got, "0") || strings.Contains(got, "events") {
		t.Errorf("%s; want an estimate as its events do not come", got)
	}
}

// TestOthersChangeNothing: whatever other tenants, salts and adapters ask and have engines store, of the same messages and tokens, what is known
// of somebody's own prompts is the same as without them.
func TestOthersChangeNothing(t *testing.T) {
	hits := 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		sealer := &openai.Sealer{Key: []byte(strings.Repeat("k", openai.MinSealKey))}
		me := asker{tenant: "x", salt: []string{"", "s"}[seed%2], adapter: []string{"", "lora"}[seed/2%2]}
		alone, among := newHeldRig(t), newHeldRig(t)
		for step := range 60 {
			q := asker{[]string{"x", "y", ""}[rng.IntN(3)], []string{"", "s", "t"}[rng.IntN(3)], []string{"", "lora"}[rng.IntN(2)]}
			if step%8 == 0 {
				q = me
			}
			messages := 1 + 2*rng.IntN(3)
			know, store := rng.IntN(2) == 0, rng.IntN(2) == 0
			for _, r := range []*heldRig{alone, among} {
				if r == alone && q != me {
					continue
				}
				b := r.body(openai.ShapeChat, q, sealer, chatOf(messages))
				k := r.find(q, b)
				k.NotePrompt(policies.Choice{Decode: 2})
				k.ForgetPrompt()
				if know {
					r.fleet.tokens.Learn(tokens.PromptOf(b.Model, q.tenant, b), ids(100*messages))
				}
				if store {
					r.store(q.adapter, b.SaltText(), ids(100*messages))
				}
			}
			for n := 1; n <= 5; n += 2 {
				want, got := alone.said(me, alone.body(openai.ShapeChat, me, sealer, chatOf(n))), among.said(me, among.body(openai.ShapeChat, me, sealer, chatOf(n)))
				if got != want {
					t.Fatalf("seed %d, step %d, %d messages: %s; want %s, as without others", seed, step, n, got, want)
				}
				if !strings.HasPrefix(got, "0 ") {
					hits++
				}
			}
		}
	}
	if hits < 100 {
		t.Errorf("%d hits; the test shows nothing", hits)
	}
}
