package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"pdrouter/internal/stocktest"
	"pdrouter/kvplane/nixl"
)

// TestSignalsAreTheGatewaysBesideNIXL has a gateway process open an agent of its own among stock engines: UCX, which comes with
// it, must not take the signals. SIGHUP has the file read again, SIGTERM ends the process well.
func TestSignalsAreTheGatewaysBesideNIXL(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: whether UCX is loaded is read in /proc")
	}
	if _, err := nixl.Find(); err != nil {
		t.Skip("SKIPPED, not run with real NIXL:", err)
	}
	prefill, decode := stocktest.New(t, "prefill-run", 1), stocktest.New(t, "decode-run", 1)
	p, _ := startGateway(t, fmt.Sprintf("models:\n  - name: tiny\n    connector: vllm-nixl-pull\n"+
		"    prefill: [{name: prefill-0, url: %q, side_channel: %q}]\n    decode: [{name: decode-0, url: %q, side_channel: %q}]\n",
		prefill.URL, prefill.Side, decode.URL, decode.Side))
	said := func(parts ...string) func() bool {
		return func() bool {
			if ended, err := p.Ended(); ended {
				t.Fatalf("it has ended: %v\n%s", err, p.Tail(40))
			}
			for _, line := range strings.Split(p.Tail(1000), "\n") {
				all := true
				for _, part := range parts {
					all = all && strings.Contains(line, part)
				}
				if all {
					return true
				}
			}
			return false
		}
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never: %s\n%s", what, p.Tail(60))
			}
		}
	}
	// The fake engines move KV by push, and the connector reads: what prefill holds for the warm-up of such a pair is given back,
	// for which the agent is opened.
	wait("the agent is opened", said(`"msg":"notification"`, "prefill-0"))
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.Cmd.Process.Pid))
	if err != nil || !strings.Contains(string(maps), "libucs") {
		t.Fatalf("UCX is not loaded: %v\n%s", err, p.Tail(40))
	}
	if err := p.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	wait("SIGHUP has the file read again", said("the configuration was taken into use"))
	if err := p.Stop(60 * time.Second); err != nil {
		t.Errorf("%v\n%s", err, p.Tail(40))
	}
	if !strings.Contains(p.Tail(20), `"msg":"stopped"`) {
		t.Errorf("it did not drain:\n%s", p.Tail(40))
	}
}
