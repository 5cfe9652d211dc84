package router

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"pdrouter/router/report"
)

// TestSGLang serves whole answers and streams, of one choice and of several, over rooms that are used once.
func TestSGLang(t *testing.T) {
	for _, row := range []struct{ name, path, body string }{
		{"whole", pathCompletions, `{"model":"tiny","prompt":"a","min_tokens":2,"seed":18014398509481985,"bootstrap_room":1,"bootstrap_host":"10.0.0.1","bootstrap_port":1%s}`},
		{"one token", pathCompletions, `{"model":"tiny","prompt":"a","max_tokens":1%s}`},
		{"chat", pathChat, `{"model":"tiny","messages":[{"role":"user","content":"a"}]%s}`},
		{"n", pathChat, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"temperature":0,"n":3%s}`},
		{"prompts", pathCompletions, `{"model":"tiny","prompt":["a","b"]%s}`},
	} {
		for _, stream := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
			t.Run(row.name+stream, func(t *testing.T) {
				s, rooms, g := startSGLang(t, 1, 1)
				body := fmt.Sprintf(row.body, stream)
				r := g.post(row.path, body)
				if r.Status != 200 || r.Err != nil || r.Header.Get("X-Pdrouter-Reason") != "split" {
					t.Fatalf("status %d, %v, header %v: %s", r.Status, r.Err, r.Header, r.Body)
				}
				fanOf(t, r)
				g.settled()
				rooms.left(t)
				for _, q := range s.c.all() {
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
	s, _, g := startSGLang(t, 1, 1)
	for _, field := range []string{`"echo":true`, `"prompt_logprobs":1`, `"n":2,"seed":9223372036854775807`} {
		r := g.post(pathCompletions, `{"model":"tiny","prompt":"a",`+field+`}`)
		if errorOf(t, r.Body); r.Status != 400 || r.Header.Get("X-Should-Retry") != "false" || s.c.count("", "") != 0 {
			t.Errorf("%s: status %d: %s", field, r.Status, r.Body)
		}
	}
	for path, body := range map[string]string{ // no member of their bodies says where the engines meet
		pathResponses: `{"model":"tiny","input":"a","truncation":"disabled"}`, pathMessages: `{"model":"tiny","messages":[],"max_tokens":9}`,
		pathGenerate: `{"model":"tiny","token_ids":[1],"sampling_params":{}}`,
	} {
		r := g.post(path, body)
		if errorOf(t, r.Body); r.Status != 400 || r.Header.Get("X-Should-Retry") != "false" || s.c.count("", "") != 0 {
			t.Errorf("%s: status %d: %s", path, r.Status, r.Body)
		}
	}
	s.p[0].srv.CloseClientConnections()
	_ = s.p[0].srv.Listener.Close()
	r := g.post(pathCompletions, plainBody)
	if errorOf(t, r.Body); r.Status != 503 || s.c.count("", "alone") != 0 {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
}

// TestFault47to62SGLang breaks one leg before the gate, and has the client leave: the answer is whole or a true error, and
// no room stays in use.
func TestFault47to62SGLang(t *testing.T) {
	for _, row := range []struct {
		name   string
		p, d   int
		faults map[string][]fault
		status int
	}{
		{"47 P refuses", 2, 1, map[string][]fault{"prefill-0": {{Do: doRefuse}}}, 200},
		{"47 P resets", 2, 1, map[string][]fault{"prefill-0": {{Do: doReset}}}, 200},
		{"47 P fails", 2, 1, map[string][]fault{"prefill-0": {{Do: doError}}}, 200},
		{"48 both reject", 1, 1, map[string][]fault{"prefill-0": {{Do: doReject}}, "decode-0": {{Do: doReject}}}, 400},
		{"50 P hangs", 2, 1, map[string][]fault{"prefill-0": {{Do: doHang}}}, 200},
		{"47 P dies in the room", 2, 1, map[string][]fault{"prefill-0": {{Do: doDieInRoom}}}, 200},
		{"47 P cannot write to D", 2, 2, map[string][]fault{"prefill-0": {{Do: doNoTransfer}}}, 200},
		{"48 P rejects alone", 1, 1, map[string][]fault{"prefill-0": {{Do: doReject}}}, 400},
		{"48 D finds fault at work", 1, 1, map[string][]fault{"decode-0": {{Do: doTurnDown}}}, 400},
		{"49 P garbage", 2, 1, map[string][]fault{"prefill-0": {{Do: doGarbage}}}, 200},
		{"51 D refuses", 1, 2, map[string][]fault{"decode-0": {{Do: doRefuse}}}, 200},
		{"51 D resets", 1, 2, map[string][]fault{"decode-0": {{Do: doReset}}}, 200},
		{"51 D dies", 1, 2, map[string][]fault{"decode-0": {{Do: doDie}}}, 200},
		{"51 D dies in the room", 1, 2, map[string][]fault{"decode-0": {{Do: doDieInRoom}}}, 200},
		{"52 D cannot reach P's bootstrap server", 2, 1, map[string][]fault{"decode-0": {{Do: doNoMeeting, N: 8998}}}, 200},
		{"52 D fails", 1, 2, map[string][]fault{"decode-0": {{Do: doError}}}, 200},
		{"54 P writes nothing", 2, 1, map[string][]fault{"prefill-0": {{Do: doNeverKV}}}, 200},
		{"60 D garbage", 1, 2, map[string][]fault{"decode-0": {{Do: doGarbage}}}, 200},
	} {
		for _, body := range []string{plainBody, streamBody} {
			t.Run(fmt.Sprint(row.name, body == streamBody), func(t *testing.T) {
				s, rooms, g := startSGLang(t, row.p, row.d)
				s.setFaults(row.faults)
				r := g.post(pathCompletions, body)
				if r.Status != row.status || r.Err != nil {
					t.Fatalf("status %d, %v: %s", r.Status, r.Err, r.Body)
				}
				if row.status == 400 {
					if e := errorOf(t, r.Body); e.Message != "as told" {
						t.Errorf("body %s", r.Body)
					}
				} else {
					if got, whole := text(t, r); !strings.HasSuffix(got, wholeText) || !whole {
						t.Errorf("text %q", got)
					}
					if row.p == 2 && s.c.count("prefill-1", "") == 0 || row.d == 2 && s.c.count("decode-1", "") == 0 {
						t.Error("the engine that was well was not asked")
					}
				}
				g.settled()
				rooms.left(t)
			})
		}
	}
	for _, l := range []string{"prefill", "decode"} {
		t.Run("58 the client leaves during "+l, func(t *testing.T) {
			s, rooms, g := startSGLang(t, 1, 1)
			slow := []fault{{Leg: l, Do: doSlow, N: 60000}}
			s.setFaults(map[string][]fault{"prefill-0": slow, "decode-0": slow})
			conn, err := net.Dial("tcp", g.addr)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", pathCompletions, len(streamBody), streamBody)
			eventually(t, "decode is at work", func() bool { return s.d[0].underWay() == 1 })
			_ = conn.Close()
			if sum := g.last(1); sum.Outcome != report.ClientLeft {
				t.Errorf("summary %+v", sum)
			}
			g.settled()
			rooms.left(t)
		})
	}
}
