package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// listen starts one of the package's servers and returns its address.
func listen(t *testing.T, serve func(ctx context.Context, out io.Writer) error) string {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, w) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	line := make([]byte, 64)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(line[:n]))
}

// behind starts two fakes of a mode and the floor in front of them.
func behind(t *testing.T, mode string) (floor string, fakes [2]string) {
	t.Helper()
	for i, role := range []string{"prefill", "decode"} {
		fakes[i] = listen(t, func(ctx context.Context, out io.Writer) error { return ServeFake(ctx, mode, role, out) })
	}
	floor = listen(t, func(ctx context.Context, out io.Writer) error { return ServeFloor(ctx, mode, fakes[0], fakes[1], out) })
	return floor, fakes
}

// TestLoadThroughFloorIsTwoLegs runs the load through the floor, plain and streamed: every request is one prefill leg
// at one fake and one decode leg at the other.
func TestLoadThroughFloorIsTwoLegs(t *testing.T) {
	for _, c := range []struct {
		mode   string
		stream bool
	}{{"pull", false}, {"pull", true}, {"push", false}, {modeSGLang, false}, {modeSGLang, true}} {
		t.Run(fmt.Sprintf("%s stream %t", c.mode, c.stream), func(t *testing.T) {
			floor, fakes := behind(t, c.mode)
			l := load{address: floor, connections: 4, body: chatBody(1024, c.stream), stream: c.stream}
			seen, err := l.run(t.Context(), 100*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			n := int64(seen.completed)
			if n < 4 {
				t.Fatalf("%d requests completed; want at least one a connection", n)
			}
			for i, want := range []Counts{{Prefill: n}, {Decode: n}} {
				got, err := countsOf(t.Context(), fakes[i])
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(want, got.asked()); d != "" {
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
	_, fakes := behind(t, "pull")
	seen, err := load{address: fakes[1], connections: 1, body: chatBody(1024, false)}.run(t.Context(), 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	counts, err := countsOf(t.Context(), fakes[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := verdict(asked(2, int64(seen.completed)), counts); !errors.Is(err, errVoid) {
		t.Errorf("got %v for %+v; want void", err, counts)
	}
}

func TestVerdict(t *testing.T) {
	for name, c := range map[string]struct {
		completed int64
		asked     Counts
		void      bool
	}{
		"two legs each":       {5, Counts{Prefill: 5, Decode: 5}, false},
		"nothing done":        {0, Counts{}, true},
		"a retried leg":       {5, Counts{Prefill: 6, Decode: 5}, true},
		"a lost prefill leg":  {5, Counts{Prefill: 4, Decode: 5}, true},
		"decode alone once":   {5, Counts{Prefill: 4, Decode: 4, Other: 1}, true},
		"somebody else asked": {5, Counts{Prefill: 5, Decode: 5, Other: 1}, true},
		"its own connections": {500, Counts{Prefill: 500, Decode: 500, Opened: 64}, false},
		"none kept":           {500, Counts{Prefill: 500, Decode: 500, Opened: 1000}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := verdict(asked(2, c.completed), c.asked); errors.Is(err, errVoid) != c.void {
				t.Errorf("got %v; want void: %t", err, c.void)
			}
		})
	}
	if err := askedFor(asked(2, 500), Counts{Prefill: 500, Decode: 500, Opened: 1000}); err != nil {
		t.Errorf("500 streams that are open at once have a connection each: %v", err)
	}
}

func TestLoadRefusesWrongAnswers(t *testing.T) {
	f := newFake("push", "decode")
	whole := string(f.stream)
	for name, c := range map[string]struct {
		stream bool
		status int
		body   string
		ok     bool
	}{
		"plain":                {false, 200, string(f.plain), true},
		"stream":               {true, 200, whole, true},
		"an error":             {false, 503, string(f.plain), false},
		"prefill's answer":     {false, 200, string(f.handoff), false},
		"a stream cut":         {true, 200, strings.TrimSuffix(whole, "data: [DONE]\n\n"), false},
		"a token lost":         {true, 200, strings.Replace(whole, " word", "", 1), false},
		"a token twice":        {true, 200, " word" + whole, false},
		"a hand-off in it":     {false, 200, string(f.plain) + `"kv_transfer_params":{`, false},
		"an event after DONE":  {true, 200, whole + "data: {}\n\n", false},
		"an empty body":        {false, 200, "", false},
		"DONE without a break": {true, 200, strings.TrimSuffix(whole, "\n"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := (load{stream: c.stream}).check(c.status, []byte(c.body)); (err == nil) != c.ok {
				t.Errorf("got %v; want it accepted: %t", err, c.ok)
			}
		})
	}
}

func TestFakeBodiesAreJSON(t *testing.T) {
	f := newFake("push", "decode")
	for name, body := range map[string][]byte{
		"plain":   f.plain,
		"handoff": f.handoff,
		"request": chatBody(1024, true),
	} {
		if !json.Valid(body) {
			t.Errorf("%s: %s", name, body)
		}
	}
	for _, size := range []int{512, 1024, 16 << 10} {
		if got := len(chatBody(size, false)); got != size {
			t.Errorf("a body of %d bytes has %d", size, got)
		}
	}
}

func TestIsTrue(t *testing.T) {
	for body, want := range map[string]bool{
		`{"stream":true}`:                                 true,
		`{"stream" : true}`:                               true,
		`{"stream":false}`:                                false,
		`{"a":"stream"}`:                                  false,
		`{"a":"stream","stream":true}`:                    true,
		`{"stream_options":{"x":true}}`:                   false,
		`{"kv":{"do_remote_decode":false},"stream":null}`: false,
	} {
		if got := isTrue([]byte(body), "stream"); got != want {
			t.Errorf("%s: got %t; want %t", body, got, want)
		}
	}
}

func TestParseCPUs(t *testing.T) {
	for list, want := range map[string][]int{"0": {0}, "0-3": {0, 1, 2, 3}, "1,4-5,9": {1, 4, 5, 9}} {
		if got, err := parseCPUs(list); err != nil || !cmp.Equal(want, got) {
			t.Errorf("%q: got %v, %v; want %v", list, got, err, want)
		}
	}
	for _, list := range []string{"", "a", "3-1", "1,", "-2"} {
		if got, err := parseCPUs(list); err == nil {
			t.Errorf("%q: got %v; want an error", list, got)
		}
	}
}

// TestNotBusy: a rate with a CPU that was not busy is not that router's.
func TestNotBusy(t *testing.T) {
	figure := func(of string, x float64) Figure { return Figure{Of: of, Spread: Spread{Median: x}} }
	rows := []Row{
		{Name: "a", What: cpuMetric, Ours: figure(us, 100), Beside: []Figure{figure("nginx", 40), {Of: "absent", Cannot: "not installed"}}},
		{Name: "a", What: rateMetric, Ours: figure(us, 9000), Beside: []Figure{figure("nginx", 10000), {Of: "absent", Cannot: "not installed"}}},
		{Name: "b", What: cpuMetric, Ours: figure(us, 10)},
	}
	if d := cmp.Diff([]string{"nginx of a 0.40"}, notBusy(rows)); d != "" {
		t.Error(d)
	}
}
