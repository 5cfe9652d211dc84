package router_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
)

// TestFault10to13Routes asks for what is not in the route table, and for what is there in another way: no engine sees any of it.
func TestFault10to13Routes(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	g := routertest.Start(t, s.Config, router.Parts{})
	nothing := func(name string, do func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			do(t)
			if n := s.Cluster.Count("", ""); n != 0 {
				t.Errorf("engines got %d requests", n)
			}
		})
	}
	// refused sends routertest.PlainBody, or no body with GET, and wants an error that is not worth another try. It returns its head.
	refused := func(t *testing.T, method, path, status, kind string) string {
		t.Helper()
		head, body := []string{"Host: a", "Connection: close"}, ""
		if method != "GET" {
			head, body = append(head, "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(routertest.PlainBody))), routertest.PlainBody
		}
		line, rest, _ := routertest.RawRequest(t, g.Addr, strings.Replace(routertest.RawPost(path, body, head...), "POST", method, 1))
		answer, body, _ := strings.Cut(rest, "\r\n\r\n")
		if !strings.Contains(line, " "+status+" ") || !strings.Contains(answer, "X-Should-Retry: false") || !strings.Contains(answer, "X-Pdrouter-Reason: ") {
			t.Errorf("%s %s: %q; want %s and no retry\n%s", method, path, line, status, answer)
		} else if e := routertest.ErrorOf(t, body); e.Type != kind {
			t.Errorf("%s %s: error of type %s; want %s", method, path, e.Type, kind)
		}
		return answer
	}
	for name, paths := range map[string][]string{
		"10 other paths": {
			"/V1/completions", "/v1//completions", "/v1/completions/", "/v1/../v1/completions", "/v1/%2e%2e/v1/completions", "/v1/..%2fv1/completions",
			"/v1/completions%00", "/v1/completions;a", "/v1/completion%73", "//v1/completions", "/", "/v1/models/", "/v1/responses/",
			"/v1/responses/a/b", "/v1/responses/a%2fb", "/v1/responses/../models", "/v1/responses//cancel", "/V1/embeddings", "/tokenize/",
		},
		"11 control routes": {
			"/invocations", "/pause", "/resume", "/abort_requests", "/update_weights", "/collective_rpc", "/sleep", "/wake_up",
			"/reset_prefix_cache", "/v1/load_lora_adapter", "/server_info", "/docs", "/metrics", "/health/", "/healthz",
			"/inference/v1/abort_requests", "/kvplane/v1/events",
		},
	} {
		nothing(name, func(t *testing.T) {
			for _, path := range paths {
				refused(t, "POST", path, "404", "NotFoundError")
				refused(t, "GET", path, "404", "NotFoundError")
			}
		})
	}
	nothing("12 method", func(t *testing.T) {
		for _, row := range [][3]string{{"GET", routertest.PathCompletions, "POST"}, {"PUT", routertest.PathChat, "POST"}, {"DELETE", routertest.PathGenerate, "POST"}, {"POST", routertest.PathModels, "GET"}} {
			if head := refused(t, row[0], row[1], "405", "BadRequestError"); !slices.Contains(strings.Split(head, "\r\n"), "Allow: "+row[2]) {
				t.Errorf("%s %s: no Allow: %s in %s", row[0], row[1], row[2], head)
			}
		}
	})
	nothing("12 content type", func(t *testing.T) {
		for _, path := range []string{routertest.PathCompletions, routertest.PathChat, routertest.PathResponses, routertest.PathMessages, routertest.PathGenerate, "/v1/embeddings"} {
			for _, header := range [][]string{{"Content-Type", "text/plain"}, {"Content-Type", "application/x-www-form-urlencoded"}, {"Content-Type", ""},
				{"Content-Type", "application/jsonp"}, {"Content-Encoding", "gzip"}} {
				r := g.Post(path, routertest.PlainBody, header...)
				if routertest.ErrorOf(t, r.Body); r.Status != 400 || r.Header.Get("X-Pdrouter-Reason") != "content_type" || r.Header.Get("X-Should-Retry") != "false" {
					t.Errorf("%s, %v: %d %v; want 400", path, header, r.Status, r.Header)
				}
			}
		}
	})
	nothing("13 websocket", func(t *testing.T) {
		refused(t, "GET", routertest.PathRealtime, "501", "NotImplementedError")
	})
}
