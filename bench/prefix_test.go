package bench

import (
	"strings"
	"testing"

	"pdrouter/bench/harness"
)

// TestPrefixLookup has prompts come round: all fit, so each is found whole with the engine that has it, and costs no memory. Where they do
// not fit the index stays as large as it may be.
func TestPrefixLookup(t *testing.T) {
	const pieces = 39 // 8 of 64 bytes, 31 of 512
	l := &prefixLookup{blocks: 1000, engines: 10, size: 16 << 10}
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	for range 2 * l.prompts {
		if n, err := l.look(); err != nil || n != pieces {
			t.Fatalf("%d of %d pieces are found, %v", n, pieces, err)
		}
	}
	if got := testing.AllocsPerRun(50, func() { _, _ = l.look() }); got != 0 {
		t.Errorf("%v allocations a lookup; want none", got)
	}
	if s := l.index.Stats(); s.Links > 1000 || s.Links < 900 || s.Evicted != 0 {
		t.Errorf("%+v; want nearly 1,000 links and none forgotten", s)
	}
	l.prompts *= 2 // others than before
	for range 2 * l.prompts {
		if _, err := l.look(); err != nil {
			t.Fatal(err)
		}
	}
	if s := l.index.Stats(); s.Links != 1000 || s.Evicted == 0 {
		t.Errorf("%+v; want all of 1,000 links", s)
	}
	if l.close(); l.index != nil || l.engines != 10 {
		t.Errorf("closed: %+v", l)
	}
}

// TestGatewayBy: two gateways of one stage differ by their policy alone.
func TestGatewayBy(t *testing.T) {
	s := &harness.Stage{Connector: "vllm-nixl-pull", Settings: "policy: {default: {prefill: prefix}}\n"}
	if text := s.GatewayText("a:1", "b:1"); !strings.HasSuffix(text, s.Settings) {
		t.Errorf("got %s", text)
	}
	if x := gatewayBy("round_robin", "round_robin"); x.Of != "round_robin" || x.Legs != 2 || x.Ready == nil {
		t.Errorf("got %+v", x)
	}
}
