package router_test

import (
	"net/http"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
)

// TestFault23OnlySplit asks a model that serves no request alone for what cannot be split: 400 before any engine is asked, and the same
// request without it is served.
func TestFault23OnlySplit(t *testing.T) {
	for _, row := range []struct{ name, path, body string }{
		{"23 echo", routertest.PathCompletions, `{"model":"tiny","prompt":"a","echo":true%s}`},
		{"23 prompt_logprobs", routertest.PathCompletions, `{"model":"tiny","prompt":"a","prompt_logprobs":1%s}`},
		{"23 best_of", routertest.PathCompletions, `{"model":"tiny","prompt":"a","best_of":2%s}`},
		{"23 beam search", routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"use_beam_search":true%s}`},
	} {
		for name, body := range map[string]string{"": row.body[:len(row.body)-3] + "}", ", streamed": row.body[:len(row.body)-3] + `,"stream":true}`} {
			routertest.RunVirtual(t, row.name+name, func(t *testing.T) {
				c := routertest.NewCluster(true)
				c.Net = routertest.NetOf(t)
				s, _ := routertest.NewSGLangOf(t, c, 1, 1)
				g := routertest.Start(t, s.Config, router.Parts{Planner: routertest.FirstUsable{}})
				r := g.Post(row.path, body)
				if e := routertest.ErrorOf(t, r.Body); r.Status != http.StatusBadRequest || e.Type != "BadRequestError" || r.Header.Get("X-Should-Retry") != "false" {
					t.Errorf("status %d, header %v: %s", r.Status, r.Header, r.Body)
				}
				if n := c.Count("", ""); n != 0 {
					t.Errorf("engines were asked %d times", n)
				}
				if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != http.StatusOK || c.Count("", "prefill") != 1 || c.Count("", "decode") != 1 {
					t.Errorf("without it: status %d: %s", r.Status, r.Body)
				}
			})
		}
	}
}
