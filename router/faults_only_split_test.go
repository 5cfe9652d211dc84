package router

import (
	"net/http"
	"testing"
)

// TestFault23OnlySplit asks a model that serves no request alone for what cannot be split: 400 before any engine is asked, and the same
// request without it is served.
func TestFault23OnlySplit(t *testing.T) {
	for _, row := range []struct{ name, path, body string }{
		{"23 echo", pathCompletions, `{"model":"tiny","prompt":"a","echo":true%s}`},
		{"23 prompt_logprobs", pathCompletions, `{"model":"tiny","prompt":"a","prompt_logprobs":1%s}`},
		{"23 best_of", pathCompletions, `{"model":"tiny","prompt":"a","best_of":2%s}`},
		{"23 beam search", pathChat, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"use_beam_search":true%s}`},
	} {
		for name, body := range map[string]string{"": row.body[:len(row.body)-3] + "}", ", streamed": row.body[:len(row.body)-3] + `,"stream":true}`} {
			unhurried(t, row.name+name, func(t *testing.T) {
				c := newCluster(true)
				c.net = netOf(t)
				s, _ := newSGLangOf(t, c, 1, 1)
				g := start(t, s.cfg, Parts{Planner: firstUsable{}})
				r := g.post(row.path, body)
				if e := errorOf(t, r.Body); r.Status != http.StatusBadRequest || e.Type != "BadRequestError" || r.Header.Get("X-Should-Retry") != "false" {
					t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
				}
				if n := c.count("", ""); n != 0 {
					t.Errorf("engines were asked %d times", n)
				}
				if r := g.post(pathCompletions, plainBody); r.Status != http.StatusOK || c.count("", "prefill") != 1 || c.count("", "decode") != 1 {
					t.Errorf("without it: status %d: %s", r.Status, r.Body)
				}
			})
		}
	}
}
