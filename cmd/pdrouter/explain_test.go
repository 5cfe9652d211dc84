package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdrouter/policies"
	"pdrouter/router/fleet"
)

// TestExplanationIsPrinted: what people see of an explanation.
func TestExplanationIsPrinted(t *testing.T) {
	e := fleet.Explanation{Model: "m", Rule: "default", Split: true, Reason: "split", Prefill: "p0", Decode: "d0", Why: "prefill prefix 16 cached, 0 in flight · decode least_load 0=0", PromptTokens: 21, Stages: []fleet.ExplainedRole{
		{Role: "prefill", Policy: "prefix", Picker: "best", Engines: []fleet.ExplainedEngine{
			{Explained: policies.Explained{Engine: "p0", Scores: []policies.Score{{Scorer: "least_work", Score: 1, Weight: 1}}, Sum: 1, Taken: true}, State: "up", Cached: 16},
			{Explained: policies.Explained{Engine: "p1", LeftOut: "it is not used now"}, State: "draining", Why: "the configuration, an administrator or discovery drains it"},
			{Explained: policies.Explained{Engine: "p2"}, State: "slow_start", Why: "it is new, or back"},
		}},
	}}
	var out bytes.Buffer
	if err := printExplanation(&out, e); err != nil {
		t.Fatal(err)
	}
	want := `model m, rule default, a prompt of about 21 tokens
prefill on p0, decode on d0: prefill prefix 16 cached, 0 in flight · decode least_load 0=0

prefill, by prefix, picker best
   ENGINE  STATE       IN FLIGHT  CACHED  BACKLOG  SCORES                                                                          SUM   
*  p0      up          0          16      0        least_work 1.00×1                                                               1.00  
   p1      draining    0          0       0        it is not used now: the configuration, an administrator or discovery drains it        
   p2      slow_start  0          0       0        it is new, or back                                                                    
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestExplainRoute: what is no path of a route is refused, before a server makes a redirect of it.
func TestExplainRoute(t *testing.T) {
	for _, route := range []string{"/v1/../status", "v1//completions", "/v1/completions?x", "/v1/completions/"} {
		body := filepath.Join(t.TempDir(), "body")
		if err := os.WriteFile(body, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), []string{"explain", "--operations", "http://127.0.0.1:1", "--route", route, body}, io.Discard); err == nil || !strings.Contains(err.Error(), "--route is") {
			t.Errorf("%s: %v", route, err)
		}
	}
}
