package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/demo"
)

// TestFault21FanReference asks for several choices, which are served by a transfer each: the answer is to the byte that of one
// engine that serves them all.
func TestFault21FanReference(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f := newFleet(t, ctx, "tcp")
	long := strings.Repeat("Tell me more about the sea. ", 12)
	varies := regexp.MustCompile(`"(created|cached_tokens)":\d+|(cmpl-)[0-9a-z-]+`)
	for _, tt := range []struct{ path, body, parts string }{
		{"/v1/completions", `{"model":%q,"prompt":["` + long + `","` + long + `And the sky?"],"max_tokens":24}`, "2"},
		{"/v1/completions", `{"model":%q,"prompt":"` + long + `","n":3,"max_tokens":24}`, "3"},
		{"/v1/chat/completions", `{"model":%q,"messages":[{"role":"user","content":"` + long + `"}],"n":2,"max_tokens":24}`, "2"},
	} {
		body := fmt.Sprintf(tt.body, demo.Model)
		want, _ := askRoute(t, ctx, f.Alone+tt.path, body)
		got, header := askRoute(t, ctx, f.Client+tt.path, body)
		if a, b := varies.ReplaceAllString(got, "-"), varies.ReplaceAllString(want, "-"); a != b || got == "" {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.path, a, b)
		}
		if header.Get("X-Pdrouter-Parts") != tt.parts {
			t.Errorf("%s: header %v", tt.path, header)
		}
	}
}
