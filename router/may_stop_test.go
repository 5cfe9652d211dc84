package router_test

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// TestMayStop asks whether engines may end, at every moment of a request: not while they take new ones, have one in progress, or hold KV that
// decode has yet to collect.
func TestMayStop(t *testing.T) {
	const body = `{"model":"tiny","prompt":"a b c","max_tokens":9}`
	for _, name := range []string{connector.NamePull, connector.NamePush} {
		t.Run(name, func(t *testing.T) {
			s, g := newServed(t, name)
			drained := s.Config
			drained.Models = slices.Clone(s.Config.Models)
			m := &drained.Models[0]
			m.Prefill, m.Decode = slices.Clone(m.Prefill), slices.Clone(m.Decode)
			for _, list := range [][]config.Engine{m.Prefill, m.Decode} {
				list[0].Drain = true
			}
			want := func(what, engine, why string) {
				t.Helper()
				if got := g.Router.MayStop(engine); got.MayStop != (why == "") || !strings.Contains(got.Why, why) {
					t.Errorf("%s: %+v; want why %q", what, got, why)
				}
			}
			want("idle, not drained", "prefill-0", "takes new requests")
			want("idle, not drained", "decode-0", "takes new requests")
			want("unknown", "prefill-7", "")

			s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoHang}}}) // it never collects
			probes := s.Cluster.Count("decode-0", "decode")
			conn := post(t, g, body)
			routertest.Eventually(t, "prefill has answered, and decode is asked", func() bool {
				return g.EngineStats("decode-0").InFlight == 1 && g.EngineStats("prefill-0").InFlight == 0 && s.Cluster.Count("decode-0", "decode") > probes
			})
			if err := g.Router.Apply(drained, g.Parts); err != nil {
				t.Fatal(err)
			}
			want("decode has not collected", "prefill-0", "has KV of 1 requests")
			want("decode works", "decode-0", "has 1 requests in progress")
			if n := g.EngineStats("prefill-0").Uncollected; n != 1 {
				t.Errorf("%d uncollected", n)
			}
			if !g.Router.Busy("prefill-0") {
				t.Error("a source may let go of prefill-0, which has KV")
			}
			lost := drained
			lost.Models, lost.Growing = slices.Clone(drained.Models), true
			lost.Models[0].Prefill, lost.Models[0].Decode = nil, nil
			if err := g.Router.Apply(lost, g.Parts); err != nil {
				t.Fatal(err)
			}
			want("the configuration has lost prefill-0", "prefill-0", "has KV of 1 requests")
			want("the configuration has lost decode-0", "decode-0", "has 1 requests in progress")
			conn.Close()
			g.WaitIdle()
			want("the request is over", "prefill-0", "")
			want("the request is over", "decode-0", "")
		})
	}
}

// TestMayStopOnceCollected has a stream that goes on after its first token: prefill holds nothing for it any more.
func TestMayStopOnceCollected(t *testing.T) {
	s, g := newServed(t, connector.NamePull)
	s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoLateToken, N: 600_000}}})
	conn := post(t, g, `{"model":"tiny","prompt":"a b c","max_tokens":9,"stream":true}`)
	if line, err := bufio.NewReader(conn).ReadString(':'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 200") {
		t.Fatalf("%q, %v", line, err)
	}
	if e := g.EngineStats("prefill-0"); e.InFlight != 0 || e.Uncollected != 0 {
		t.Errorf("%+v", e)
	}
	if g.EngineStats("decode-0").InFlight != 1 {
		t.Error("the stream is over")
	}
	conn.Close()
}

// post sends a request on a connection of its own, and reads nothing.
func post(t *testing.T, g *routertest.Gateway, body string) net.Conn {
	t.Helper()
	conn := g.Dial(t)
	if _, err := fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	return conn
}
