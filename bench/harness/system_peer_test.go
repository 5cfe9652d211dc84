package harness

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/bench/fake"
	"pdrouter/bench/internal/benchtest"
	"pdrouter/bench/load"
)

// installed is the configuration of a run in this repository.
func installed(t *testing.T) Config {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return Config{Peers: filepath.Join(root, ".deps", "peers")}
}

// TestTargets has each proxy and each peer that is installed carry requests of every connector that it has to a pair of fakes: the
// engines count the legs that the target says it makes.
func TestTargets(t *testing.T) {
	cfg := installed(t)
	if _, err := os.Stat(cfg.Peers); err != nil {
		t.Skip("nothing is installed to stand beside pdrouter; make peers installs it")
	}
	for _, x := range slices.Concat(ProxyTargets(), PeerTargets()) {
		for _, connector := range []string{"vllm-nixl-pull", "vllm-nixl-push", "sglang"} {
			t.Run(x.Of+" "+connector, func(t *testing.T) {
				t.Parallel()
				if why := x.Cannot(cfg, connector); why != "" {
					t.Skip(why)
				}
				_, fakes := benchtest.Behind(t, strings.TrimPrefix(connector, "vllm-nixl-"))
				s := &Stage{Cfg: cfg, Connector: connector, Targets: []Target{x}, Cannot: []string{""}}
				s.Prefill, s.Decode = []*Child{{Address: fakes[0]}}, []*Child{{Address: fakes[1]}}
				c, err := x.Start(t.Context(), s)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Stop()
				if err := x.Await(t.Context(), c); err != nil {
					t.Fatal(err)
				}
				for _, stream := range []bool{false, true} {
					checkLegs(t, x, load.Closed{Address: c.Address, Connections: 2, Body: fake.ChatBody(1024, stream), Stream: stream}, fakes)
				}
			})
		}
	}
}

// checkLegs applies a load and compares what the engines were asked with what was completed.
func checkLegs(t *testing.T, x Target, l load.Closed, fakes [2]string) {
	t.Helper()
	counts := func() (sum fake.Counts) {
		for _, f := range fakes {
			c, err := countsOf(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			sum = sum.Plus(c)
		}
		return sum
	}
	before := counts()
	seen, err := l.Run(t.Context(), 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	want := Asked(x.Legs, int64(seen.Completed))
	got := counts().Minus(before)
	for end := time.Now().Add(10 * time.Second); got.Asked() != want && time.Now().Before(end); got = counts().Minus(before) {
		time.Sleep(time.Millisecond) // decode's answer may be here before prefill has read its leg
	}
	if err := Verdict(want, got); err != nil {
		t.Errorf("stream %t: %v", l.Stream, err)
	}
}

// TestPeerCannot: a peer that is not measured says why.
func TestPeerCannot(t *testing.T) {
	cfg := Config{Peers: filepath.Join(t.TempDir(), "peers")}
	said := map[string]string{}
	for _, x := range PeerTargets() {
		said[x.Of] = x.Cannot(cfg, "vllm-nixl-push")
	}
	if d := cmp.Diff(map[string]string{
		"vllm-router": "not installed; make peers installs it", "smg": "measured with vllm-nixl-pull and sglang", "sglang-router": "measured with sglang",
	}, said); d != "" {
		t.Error(d)
	}
}

func TestFirstNumber(t *testing.T) {
	for text, want := range map[string]string{
		"nginx version: nginx/1.22.1\n":                                      "1.22.1",
		"HAProxy version 2.6.12-1+deb12u4 2026/03/01 - https://haproxy.org/": "2.6.12",
		"no version": "", "": "",
	} {
		if got := firstNumber(text); got != want {
			t.Errorf("%q: got %q; want %q", text, got, want)
		}
	}
}
