package harness

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/bench/fake"
	"pdrouter/bench/internal/benchtest"
	"pdrouter/bench/load"
)

// TestLoadThroughBaselineIsTwoLegs runs the load through the baseline proxy, plain and streamed: every request is one prefill leg
// at one fake and one decode leg at the other.
func TestLoadThroughBaselineIsTwoLegs(t *testing.T) {
	for _, c := range []struct {
		mode   string
		stream bool
	}{{"pull", false}, {"pull", true}, {"push", false}, {fake.SGLang, false}, {fake.SGLang, true}} {
		t.Run(fmt.Sprintf("%s stream %t", c.mode, c.stream), func(t *testing.T) {
			baseline, fakes := benchtest.Behind(t, c.mode)
			l := load.Closed{Address: baseline, Connections: 4, Body: fake.ChatBody(1024, c.stream), Stream: c.stream}
			seen, err := l.Run(t.Context(), 100*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			n := int64(seen.Completed)
			if n < 4 {
				t.Fatalf("%d requests completed; want at least one a connection", n)
			}
			for i, want := range []fake.Counts{{Prefill: n}, {Decode: n}} {
				got, err := countsOf(t.Context(), fakes[i])
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(want, got.Asked()); d != "" {
					t.Error(d)
				}
				if got.Opened < 1 || got.Opened > 5 {
					t.Errorf("%d connections were opened by a proxy of 4 and by whoever counts; want them kept", got.Opened)
				}
			}
		})
	}
}

// TestLoadPastTheLegsIsVoid asks a fake itself: the answers are right, and the counts tell that no leg was made.
func TestLoadPastTheLegsIsVoid(t *testing.T) {
	_, fakes := benchtest.Behind(t, "pull")
	seen, err := load.Closed{Address: fakes[1], Connections: 1, Body: fake.ChatBody(1024, false)}.Run(t.Context(), 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	counts, err := countsOf(t.Context(), fakes[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := Verdict(Asked(2, int64(seen.Completed)), counts); !errors.Is(err, load.ErrVoid) {
		t.Errorf("got %v for %+v; want void", err, counts)
	}
}

func TestVerdict(t *testing.T) {
	for name, c := range map[string]struct {
		completed int64
		asked     fake.Counts
		void      bool
	}{
		"two legs each":       {5, fake.Counts{Prefill: 5, Decode: 5}, false},
		"nothing done":        {0, fake.Counts{}, true},
		"a retried leg":       {5, fake.Counts{Prefill: 6, Decode: 5}, true},
		"a lost prefill leg":  {5, fake.Counts{Prefill: 4, Decode: 5}, true},
		"decode alone once":   {5, fake.Counts{Prefill: 4, Decode: 4, Other: 1}, true},
		"somebody else asked": {5, fake.Counts{Prefill: 5, Decode: 5, Other: 1}, true},
		"its own connections": {500, fake.Counts{Prefill: 500, Decode: 500, Opened: 64}, false},
		"none kept":           {500, fake.Counts{Prefill: 500, Decode: 500, Opened: 1000}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := Verdict(Asked(2, c.completed), c.asked); errors.Is(err, load.ErrVoid) != c.void {
				t.Errorf("got %v; want void: %t", err, c.void)
			}
		})
	}
	if err := AskedFor(Asked(2, 500), fake.Counts{Prefill: 500, Decode: 500, Opened: 1000}); err != nil {
		t.Errorf("500 streams that are open at once have a connection each: %v", err)
	}
}
