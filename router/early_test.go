package router_test

import (
	"io"
	"net"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
)

// TestFault59EarlyEvents has an engine send comments, or events that are not yet of the answer, without end: comments are not
// kept, and of the others not more than one event may be.
func TestFault59EarlyEvents(t *testing.T) {
	const limit = 64 << 10
	comments := strings.Repeat(": "+strings.Repeat("x", 1000)+"\n\n", 2*limit/1000)
	created := "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"instructions\":\"" + strings.Repeat("x", 1000) + "\"}}\n\n"
	delta := "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n"
	done := "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\"}}\n\n"
	for _, row := range []struct {
		name, path, body, events, want string
		status                         int
	}{
		{"59 comments", routertest.PathCompletions, routertest.StreamBody, comments + "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\ndata: [DONE]\n\n",
			"data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\ndata: [DONE]\n\n", 200},
		{"59 an event that tells of the request", routertest.PathResponses, `{"model":"tiny","input":"a","stream":true}`, created + delta + done, created + delta + done, 200},
		{"59 too many of them", routertest.PathResponses, `{"model":"tiny","input":"a","stream":true}`, strings.Repeat(created, 2*limit/1000) + delta + done, "", 502},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := rawEngine(t, func(_ int, conn net.Conn) {
				_, _ = io.WriteString(conn, rawStreamHead+rawChunk(row.events)+"0\r\n\r\n")
			})
			g := routertest.Start(t, config.Config{Models: []config.Model{{Name: "tiny", Engines: []config.Engine{e}}}, Limits: config.Limits{Event: limit, Attempts: 1}}, router.Parts{})
			r := g.Post(row.path, row.body)
			if r.Status != row.status || row.status == 200 && (r.Err != nil || r.Body != row.want) {
				t.Errorf("status %d, end %v, %d bytes: %.200q", r.Status, r.Err, len(r.Body), r.Body)
			}
		})
	}
}
