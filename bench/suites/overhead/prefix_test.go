package overhead

import (
	"strings"
	"testing"

	"pdrouter/bench/harness"
)

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
