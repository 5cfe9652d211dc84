package router_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router/dispatch"
)

// TestSGLang serves whole answers and streams, of one choice and of several, over rooms that are used once.
func TestSGLang(t *testing.T) {
	for _, row := range []struct{ name, path, body string }{
		{"whole", routertest.PathCompletions, `{"model":"tiny","prompt":"a","min_tokens":2,"seed":18014398509481985,"bootstrap_room":1,"bootstrap_host":"10.0.0.1","bootstrap_port":1%s}`},
		{"one token", routertest.PathCompletions, `{"model":"tiny","prompt":"a","max_tokens":1%s}`},
		{"chat", routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":"a"}]%s}`},
		{"n", routertest.PathChat, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"temperature":0,"n":3%s}`},
		{"prompts", routertest.PathCompletions, `{"model":"tiny","prompt":["a","b"]%s}`},
	} {
		for _, stream := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
			t.Run(row.name+stream, func(t *testing.T) {
				s, rooms, g := routertest.StartSGLang(t, 1, 1)
				body := fmt.Sprintf(row.body, stream)
				r := g.Post(row.path, body)
				if r.Status != 200 || r.Err != nil || r.Header.Get("X-Pdrouter-Reason") != "split" {
					t.Fatalf("status %d, %v, header %v: %s", r.Status, r.Err, r.Header, r.Body)
				}
				fanOf(t, r)
				g.WaitIdle()
				rooms.Left(t)
				for _, q := range s.Cluster.All() {
					if strings.Contains(q.Body, "transfer_params") || strings.Count(q.Body, "bootstrap_room") != 1 || strings.Contains(q.Body, "10.0.0.1") {
						t.Errorf("%s was sent %s", q.Leg, q.Body)
					}
					if streams := strings.Contains(q.Body, `"stream":true`); streams != (stream != "" && q.Leg == "decode") {
						t.Errorf("%s was sent %s", q.Leg, q.Body)
					}
					if strings.Contains(body, "min_tokens") && !strings.Contains(q.Body, `"min_tokens":2,"seed":18014398509481985`) {
						t.Errorf("%s was sent %s", q.Leg, q.Body)
					}
				}
			})
		}
	}
}

// TestSGLangRefuses answers what its engines serve neither together nor alone, and without a prefill engine.
func TestSGLangRefuses(t *testing.T) {
	s, _, g := routertest.StartSGLang(t, 1, 1)
	for _, field := range []string{`"echo":true`, `"prompt_logprobs":1`, `"n":2,"seed":9223372036854775807`} {
		r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"a",`+field+`}`)
		if routertest.ErrorOf(t, r.Body); r.Status != 400 || r.Header.Get("X-Should-Retry") != "false" || s.Cluster.Count("", "") != 0 {
			t.Errorf("%s: status %d: %s", field, r.Status, r.Body)
		}
	}
	for path, body := range map[string]string{ // no member of their bodies says where the engines meet
		routertest.PathResponses: `{"model":"tiny","input":"a","truncation":"disabled"}`, routertest.PathMessages: `{"model":"tiny","messages":[],"max_tokens":9}`,
		routertest.PathGenerate: `{"model":"tiny","token_ids":[1],"sampling_params":{}}`,
	} {
		r := g.Post(path, body)
		if routertest.ErrorOf(t, r.Body); r.Status != 400 || r.Header.Get("X-Should-Retry") != "false" || s.Cluster.Count("", "") != 0 {
			t.Errorf("%s: status %d: %s", path, r.Status, r.Body)
		}
	}
	_ = s.Prefill[0].Server.Listener.Close()
	s.Prefill[0].Server.CloseClientConnections()
	r := g.Post(routertest.PathCompletions, routertest.PlainBody)
	if routertest.ErrorOf(t, r.Body); r.Status != 503 || s.Cluster.Count("", "alone") != 0 {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
}

// TestFault47to62SGLang breaks one leg before the gate, and has the client leave: the answer is whole or a true error, and
// no room stays in use.
func TestFault47to62SGLang(t *testing.T) {
	for _, row := range []struct {
		name   string
		p, d   int
		faults map[string][]routertest.Fault
		status int
	}{
		{"47 P refuses", 2, 1, map[string][]routertest.Fault{"prefill-0": {{Do: routertest.DoRefuse}}}, 200},
		{"47 P resets", 2, 1, map[string][]routertest.Fault{"prefill-0": {{Do: routertest.DoReset}}}, 200},
		{"47 P fails", 2, 1, map[string][]routertest.Fault{"prefill-0": {{Do: routertest.DoError}}}, 200},
		{"48 both reject", 1, 1, map[string][]routertest.Fault{"prefill-0": {{Do: routertest.DoReject}}, "decode-0": {{Do: routertest.DoReject}}}, 400},
		{"50 P hangs", 2, 1, map[string][]routertest.Fault{"prefill-0": {{Do: routertest.DoHang}}}, 200},
		{"47 P dies in the room", 2, 1, map[string][]routertest.Fault{"prefill-0": {{Do: routertest.DoDieInRoom}}}, 200},
		{"47 P cannot write to D", 2, 2, map[string][]routertest.Fault{"prefill-0": {{Do: routertest.DoNoTransfer}}}, 200},
		{"48 P rejects alone", 1, 1, map[string][]routertest.Fault{"prefill-0": {{Do: routertest.DoReject}}}, 400},
		{"48 D finds fault at work", 1, 1, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoTurnDown}}}, 400},
		{"49 P garbage", 2, 1, map[string][]routertest.Fault{"prefill-0": {{Do: routertest.DoGarbage}}}, 200},
		{"51 D refuses", 1, 2, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoRefuse}}}, 200},
		{"51 D resets", 1, 2, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoReset}}}, 200},
		{"51 D dies", 1, 2, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoDie}}}, 200},
		{"51 D dies in the room", 1, 2, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoDieInRoom}}}, 200},
		{"52 D cannot reach P's bootstrap server", 2, 1, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoNoMeeting, N: 8998}}}, 200},
		{"52 D fails", 1, 2, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoError}}}, 200},
		{"54 P writes nothing", 2, 1, map[string][]routertest.Fault{"prefill-0": {{Do: routertest.DoNeverKV}}}, 200},
		{"60 D garbage", 1, 2, map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoGarbage}}}, 200},
	} {
		for _, body := range []string{routertest.PlainBody, routertest.StreamBody} {
			t.Run(fmt.Sprint(row.name, body == routertest.StreamBody), func(t *testing.T) {
				s, rooms, g := routertest.StartSGLang(t, row.p, row.d)
				s.SetFaults(row.faults)
				r := g.Post(routertest.PathCompletions, body)
				if r.Status != row.status || r.Err != nil {
					t.Fatalf("status %d, %v: %s", r.Status, r.Err, r.Body)
				}
				if row.status == 400 {
					if e := routertest.ErrorOf(t, r.Body); e.Message != "as told" {
						t.Errorf("body %s", r.Body)
					}
				} else {
					if got, whole := routertest.Text(t, r); !strings.HasSuffix(got, routertest.WholeText) || !whole {
						t.Errorf("text %q", got)
					}
					if row.p == 2 && s.Cluster.Count("prefill-1", "") == 0 || row.d == 2 && s.Cluster.Count("decode-1", "") == 0 {
						t.Error("the engine that was well was not asked")
					}
				}
				g.WaitIdle()
				rooms.Left(t)
			})
		}
	}
	for _, l := range []string{"prefill", "decode"} {
		t.Run("58 the client leaves during "+l, func(t *testing.T) {
			s, rooms, g := routertest.StartSGLang(t, 1, 1)
			slow := []routertest.Fault{{Leg: l, Do: routertest.DoSlow, N: 60000}}
			s.SetFaults(map[string][]routertest.Fault{"prefill-0": slow, "decode-0": slow})
			conn, err := net.Dial("tcp", g.Addr)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", routertest.PathCompletions, len(routertest.StreamBody), routertest.StreamBody)
			routertest.Eventually(t, "decode is at work", func() bool { return s.Decode[0].UnderWay() == 1 })
			_ = conn.Close()
			if sum := g.Summary(1); sum.Outcome != dispatch.ClientLeft {
				t.Errorf("summary %+v", sum)
			}
			g.WaitIdle()
			rooms.Left(t)
		})
	}
}
