package refengine

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newTestEngine(t *testing.T, c Config) *Engine {
	t.Helper()
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

func closeEngine(t *testing.T, e *Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Error(err)
	}
}

// ask waits for the whole answer to a request.
func ask(t *testing.T, e *Engine, q Request) []int32 {
	t.Helper()
	s, err := e.Submit(q)
	if err != nil {
		t.Fatal(err)
	}
	out, err := collect(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func collect(s *Sequence) ([]int32, error) {
	var out []int32
	for o := range s.Outputs() {
		if o.Err != nil {
			return out, o.Err
		}
		if o.Token >= 0 {
			out = append(out, o.Token)
		}
		if o.Finish != FinishNone {
			break
		}
	}
	return out, nil
}

// allFree fails the test unless every block is free and nothing is under way.
func allFree(t *testing.T, e *Engine) {
	t.Helper()
	b := e.Books()
	if b.Free != b.Blocks || b.Running+b.Waiting+b.Receiving+b.Transfers != 0 {
		t.Errorf("%s: not all free: %+v", e.cfg.Name, b)
	}
}

func TestSequencesShareSteps(t *testing.T) {
	shape := Shape{Seed: 5, Layers: 2, Heads: 4, HeadDim: 2}
	m := NewModel(shape)
	e := newTestEngine(t, Config{Shape: shape, TP: 2, BlockTokens: 4, Blocks: 40, MaxStep: 7, MaxModelLen: 80})
	r := rand.New(rand.NewPCG(4, 4))
	var seqs []*Sequence
	var want [][]int32
	for range 30 { // together they need far more blocks than there are
		p := prompt(r, 1+r.IntN(30))
		n := 1 + r.IntN(12)
		s, err := e.Submit(Request{Tokens: p, MaxTokens: n, Leg: WholeLeg, IgnoreEnd: true})
		if err != nil {
			t.Fatal(err)
		}
		seqs, want = append(seqs, s), append(want, naive(m, p, n, 0, true))
	}
	for i, s := range seqs {
		got, err := collect(s)
		if err != nil || !slices.Equal(got, want[i]) {
			t.Errorf("sequence %d: got %v, %v; want %v", i, got, err, want[i])
		}
	}
	allFree(t, e)
}

func TestPrefixCache(t *testing.T) {
	shape := Shape{Seed: 6, Layers: 2, Heads: 2, HeadDim: 2}
	m := NewModel(shape)
	e := newTestEngine(t, Config{Shape: shape, BlockTokens: 4, Blocks: 16, MaxModelLen: 64, PrefixCache: true})
	r := rand.New(rand.NewPCG(5, 5))
	base := prompt(r, 20)
	for _, c := range []struct {
		name   string
		prompt []int32
		salt   string
		cached int
	}{
		{"first", base, "", 0},
		{"same: all full blocks but the one of the last token", base, "", 16},
		{"longer", append(slices.Clone(base), prompt(r, 5)...), "", 20},
		{"another third block", append(slices.Clone(base[:9]), prompt(r, 9)...), "", 8},
		{"another salt", base, "tenant", 0},
		{"the salt again", base, "tenant", 16},
	} {
		s, err := e.Submit(Request{Tokens: c.prompt, MaxTokens: 6, Leg: WholeLeg, Salt: c.salt})
		if err != nil {
			t.Fatal(err)
		}
		got, err := collect(s)
		if err != nil {
			t.Fatal(err)
		}
		if s.Cached() != c.cached {
			t.Errorf("%s: %d tokens cached; want %d", c.name, s.Cached(), c.cached)
		}
		if diff := cmp.Diff(got, naive(m, c.prompt, 6, 0, false)); diff != "" {
			t.Errorf("%s (-engine +naive):\n%s", c.name, diff)
		}
		allFree(t, e)
	}
	// A prompt that needs every block pushes all that was found out.
	ask(t, e, Request{Tokens: prompt(r, 60), MaxTokens: 2, Leg: WholeLeg})
	s, err := e.Submit(Request{Tokens: base, MaxTokens: 1, Leg: WholeLeg})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := collect(s); err != nil || s.Cached() != 0 {
		t.Errorf("after every block was used again: %d tokens cached, %v; want 0", s.Cached(), err)
	}
	allFree(t, e)
}

func TestCancelAtEveryStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := New(Config{BlockTokens: 4, Blocks: 16, MaxModelLen: 64, MaxStep: 8, PrefillCost: time.Millisecond, DecodeCost: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(6, 6))
		// 40 tokens of prompt take 5 steps of 8 ms, then each token 10 ms: 40 to 190 ms. The second waits for blocks.
		q := Request{Tokens: prompt(r, 40), MaxTokens: 16, Leg: WholeLeg, IgnoreEnd: true}
		for at := range 20 {
			first, err := e.Submit(q)
			if err != nil {
				t.Fatal(err)
			}
			second, err := e.Submit(q)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(at) * 10 * time.Millisecond)
			e.Cancel(second)
			e.Cancel(first)
			synctest.Wait()
			allFree(t, e)
			if _, err := collect(second); !errors.Is(err, ErrLeft) {
				t.Errorf("cancelled after %d ms: the waiting one ended in %v", 10*at, err)
			}
			if got, err := collect(first); at < 19 && !errors.Is(err, ErrLeft) {
				t.Errorf("cancelled after %d ms: the running one ended in %v with %d tokens", 10*at, err, len(got))
			}
		}
		closeEngine(t, e)
	})
}

func TestCostsAreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := New(Config{PrefillCost: time.Millisecond, DecodeCost: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		s, err := e.Submit(Request{Tokens: tokenize("hello"), MaxTokens: 3, Leg: WholeLeg, IgnoreEnd: true})
		if err != nil {
			t.Fatal(err)
		}
		var at []time.Duration
		for o := range s.Outputs() {
			at = append(at, time.Since(start))
			if o.Finish != FinishNone {
				break
			}
		}
		if diff := cmp.Diff(at, []time.Duration{6 * time.Millisecond, 16 * time.Millisecond, 26 * time.Millisecond}); diff != "" {
			t.Errorf("times of the tokens (-got +want):\n%s", diff)
		}
		closeEngine(t, e)
	})
}

func TestCloseLetsAnswersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := New(Config{DecodeCost: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		s, err := e.Submit(Request{Tokens: tokenize("hello"), MaxTokens: 20, Leg: WholeLeg, IgnoreEnd: true})
		if err != nil {
			t.Fatal(err)
		}
		go closeEngine(t, e) // gives up after 10 s
		synctest.Wait()
		if _, err := e.Submit(Request{Tokens: tokenize("x"), MaxTokens: 1, Leg: WholeLeg}); !errors.Is(err, ErrStopping) {
			t.Errorf("a request after Close got %v; want %v", err, ErrStopping)
		}
		got, err := collect(s)
		if !errors.Is(err, ErrStopping) || len(got) != 10 && len(got) != 11 {
			t.Errorf("closed with 10 s to go: %d tokens, %v", len(got), err)
		}
	})
}

func TestSubmitRefuses(t *testing.T) {
	e := newTestEngine(t, Config{MaxModelLen: 10, Faults: []Fault{{Leg: WholeLeg, Nth: 1, Do: Refuse}}})
	for _, c := range []struct {
		name string
		req  Request
		want error
	}{
		{"no prompt", Request{MaxTokens: 1, Leg: WholeLeg}, ErrTooLong},
		{"no answer", Request{Tokens: []int32{1}, Leg: WholeLeg}, ErrTooLong},
		{"too long", Request{Tokens: make([]int32, 8), MaxTokens: 3, Leg: WholeLeg}, ErrTooLong},
		{"no plane", Request{Tokens: []int32{1}, MaxTokens: 1, Leg: PrefillLeg}, ErrLeg},
		{"no leg", Request{Tokens: []int32{1}, MaxTokens: 1}, ErrLeg},
		{"fits", Request{Tokens: make([]int32, 8), MaxTokens: 2, Leg: WholeLeg}, nil},
		{"broken on purpose", Request{Tokens: make([]int32, 8), MaxTokens: 2, Leg: WholeLeg}, &apiError{}},
	} {
		s, err := e.Submit(c.req)
		var api *apiError
		if refused := errors.As(err, &api); !errors.Is(err, c.want) && !refused || refused != errors.As(c.want, &api) {
			t.Errorf("%s: got %v; want %v", c.name, err, c.want)
		}
		if err == nil {
			if _, err := collect(s); err != nil {
				t.Error(err)
			}
		}
	}
	allFree(t, e)
}
