//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// deaths kills the engines of a pair under load. Where prefill writes, it is started again, and a second decode engine with it.
func (v *vllm) deaths(t *testing.T, way pair, front gateway, l *load, prefill, decode engine) {
	v.step(t, "prefill killed under load", func() { front.orphans(t, l, way, prefill, decode) })
	if way.mover == "decode" {
		v.step(t, "decode killed in the middle of a stream", func() { decodeDies(t, decode, begin(t, front.url, story(t, decode.url))) })
		return
	}
	var second engine
	v.step(t, "prefill started again, and a second decode", func() {
		other := coming(func() engine {
			return v.engine(t, role{name: "second decode", cpu: 1, transfer: way.transfer("kv_consumer"), random: true}, nil)
		})
		prefill = v.reborn(t, front, way, prefill)
		until(t, 2*stalled, "the second decode is healthy", func() bool { return other.healthy(t) })
		second = other.engine
	})
	var onward gateway
	v.step(t, "a gateway that goes on with streams", func() {
		onward = serve(t, v.gateway, config{
			connector: way.connector, prefill: []backend{prefill.backend()}, decode: []backend{decode.backend(), second.backend()},
			more: "policy: {default: {policy: roles, after_failure: continue}}\n",
		})
		onward.warm(t)
	})
	v.step(t, "decode killed in the middle of two streams", func() {
		want := story(t, second.url)
		whole := begin(t, onward.url, want)
		for try := 0; whole.decode != "decode-0"; try++ {
			if try == 20 {
				t.Fatalf("the policy chose %q twenty times", whole.decode)
			}
			whole.leave()
			whole = begin(t, onward.url, want)
		}
		decodeDies(t, decode, begin(t, front.url, want))
		text, done, err := whole.rest(t)
		if !done || err != "" || text != whole.want {
			t.Errorf("the stream that goes on: terminal event %v, error %q, equal to one engine's %v:\n%.300q\n%.300q", done, err, text == whole.want, text, whole.want)
		}
		t.Logf("the stream went on behind %d bytes, to %d", whole.had, len(text))
	})
	v.step(t, "prefill killed while a decode with names of its own waits", func() {
		unnamed := serve(t, v.gateway, config{connector: way.connector, prefill: []backend{prefill.backend()}, decode: []backend{second.backend()}})
		unnamed.warm(t)
		unnamed.says(t, prefill, second)
	})
}

// orphans kills prefill under load, and checks that every request is served, rightly, and that decode's blocks come free
// though nobody will write them. With push prefill is held first, until decode waits for it.
func (g gateway) orphans(t *testing.T, l *load, way pair, prefill, decode engine) {
	t.Helper()
	stop := l.run(t, g.url, nil)
	time.Sleep(2 * time.Second)
	waiting := 0.0
	if way.mover == "prefill" {
		waiting = held(t, prefill, decode)
	}
	prefill.kill()
	time.Sleep(time.Second)
	n := stop()
	began := time.Now()
	until(t, slow, "decode's blocks are free again", func() bool { return unused(t, decode) })
	t.Logf("%d requests, %v of them waited on decode as prefill died; free %.1f s after the last one", n, waiting, time.Since(began).Seconds())
	g.tell(t)
	for _, p := range l.prompts { // what was given back is no wrong prefix to anybody
		if status, got := complete(t.Context(), g.url, p, 12, false); status != http.StatusOK || got != l.want[p] {
			t.Errorf("afterwards: status %d, %q; want %q", status, got, l.want[p])
		}
	}
}

// held stops prefill's processes until decode has requests that wait for it, and returns how many.
func held(t *testing.T, prefill, decode engine) (n float64) {
	t.Helper()
	_ = syscall.Kill(-prefill.cmd.Process.Pid, syscall.SIGSTOP)
	until(t, slow, "decode waits for prefill", func() bool {
		n = must(t, scrape(t, decode.url), "vllm:num_requests_waiting")
		return n > 0
	})
	return n
}

// reborn starts a killed prefill engine again at its addresses, while requests go on. None fails: decode serves alone
// until the new run is known, which then is shaken hands with once.
func (v *vllm) reborn(t *testing.T, front gateway, way pair, prefill engine) engine {
	t.Helper()
	handshakes := func() float64 {
		return must(t, scrape(t, front.operations), "pdrouter_pair_handshakes_total", `outcome="done"`)
	}
	before := handshakes()
	again := coming(func() engine {
		return v.engine(t, role{name: "prefill again", transfer: way.transfer("kv_producer")}, []string{strings.TrimPrefix(prefill.url, "http://"), prefill.side})
	})
	reasons := map[string]int{}
	last := ""
	until(t, 2*stalled, "a request is split again", func() bool {
		status, reason, said := front.ask(t)
		if status != http.StatusOK {
			t.Errorf("status %d, reason %q: %s", status, reason, said)
		}
		reasons[reason]++
		last = reason
		time.Sleep(time.Second) // the engine that starts needs the CPU more
		return again.healthy(t) && last == "split"
	})
	t.Logf("requests meanwhile, by reason: %v", reasons)
	if len(reasons) < 2 {
		t.Errorf("reasons %v; want requests that decode served alone, and one that was split", reasons)
	}
	if got := handshakes() - before; got != 1 {
		t.Errorf("%v handshakes; want one with the new run", got)
	}
	until(t, time.Minute, "the new run is published, and the old one is not", func() bool { return front.counter(t, "pdrouter_metadata_engines") == 1 })
	return again.engine
}

// stalled is how long an engine that starts may take before it is started again, as whoever runs engines would: one start in some
// dozens hangs in its worker.
const stalled = 5 * time.Minute

// starting is an engine that is to come up.
type starting struct {
	engine
	start func() engine
	began time.Time
}

// coming starts an engine.
func coming(start func() engine) *starting { return &starting{start(), start, time.Now()} }

// healthy reports whether it has come up, and starts it again if it has stalled.
func (s *starting) healthy(t *testing.T) bool {
	t.Helper()
	if _, err := read(t.Context(), s.url+"/health"); err == nil {
		s.unpin(t)
		return true
	}
	if time.Since(s.began) > stalled {
		t.Logf("%s has not come up in %s, and is started again; it said last:\n%s", s.name, stalled, s.tail(5))
		s.kill()
		s.engine, s.began = s.start(), time.Now()
	}
	return false
}

// says kills prefill while decode waits, where decode's names are not known: the gateway says how many blocks stay held.
func (g gateway) says(t *testing.T, prefill, decode engine) {
	t.Helper()
	var wg sync.WaitGroup
	_ = syscall.Kill(-prefill.cmd.Process.Pid, syscall.SIGSTOP)
	for i := range 4 {
		wg.Go(func() {
			prompt := fmt.Sprintf("%d waits: %s", i, strings.Repeat("a long way to go ", 80))
			if status, text := complete(t.Context(), g.url, prompt, 12, true); status != http.StatusOK && !strings.Contains(text, "being tried again") {
				t.Errorf("status %d, %q", status, text) // the budget of retries may refuse some of so few
			}
		})
	}
	n := held(t, prefill, decode)
	prefill.kill()
	wg.Wait()
	until(t, slow, "the gateway says what stays held", func() bool { return g.counter(t, "pdrouter_leaked_kv_blocks") > 0 })
	t.Logf("%v requests waited; decode's usage %v", n, must(t, scrape(t, decode.url), "vllm:kv_cache_usage_perc"))
	g.tell(t)
}

// streaming is a stream that has begun.
type streaming struct {
	answer *http.Response
	events *bufio.Scanner
	decode string // who the gateway says serves it
	text   string
	had    int    // bytes of text when it was last looked at
	want   string // what one engine says
}

// ask asks for a long completion.
func ask(t *testing.T, url string, stream bool) *http.Response {
	t.Helper()
	body, _ := json.Marshal(map[string]any{"model": "tiny", "prompt": "a long story, " + strings.Repeat("and on, ", 20), "max_tokens": 1500,
		"temperature": 0, "ignore_eos": true, "stream": stream})
	a, err := http.Post(url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if a.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(a.Body)
		t.Fatalf("status %d: %s", a.StatusCode, said)
	}
	return a
}

// story is what one engine says to it.
func story(t *testing.T, url string) string {
	t.Helper()
	whole := ask(t, url, false)
	defer whole.Body.Close()
	var one completion
	if err := json.NewDecoder(whole.Body).Decode(&one); err != nil || len(one.Choices) != 1 {
		t.Fatalf("%v: %+v", err, one)
	}
	return one.Choices[0].Text
}

// begin asks for it as a stream, and reads some of it.
func begin(t *testing.T, url, want string) *streaming {
	t.Helper()
	s := &streaming{answer: ask(t, url, true), want: want}
	t.Cleanup(s.leave)
	s.decode = s.answer.Header.Get("X-Pdrouter-Decode")
	s.events = bufio.NewScanner(s.answer.Body)
	s.events.Buffer(nil, 1<<20)
	for len(s.text) < 40 {
		if done, err := s.next(t); done || err != "" {
			t.Fatalf("the stream ended behind %q: %v %s", s.text, done, err)
		}
	}
	return s
}

type completion struct {
	Choices []struct{ Text string }
	Error   *struct{ Message, Type string }
}

func (s *streaming) leave() { s.answer.Body.Close() }

// next reads an event. done: it is the terminal one; err is what an error event says, or how the connection ended.
func (s *streaming) next(t *testing.T) (done bool, err string) {
	t.Helper()
	for s.events.Scan() {
		data, ok := strings.CutPrefix(s.events.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return true, ""
		}
		var c completion
		if e := json.Unmarshal([]byte(data), &c); e != nil {
			t.Fatalf("%v: %s", e, data)
		}
		if c.Error != nil {
			return false, "event " + c.Error.Type + ": " + c.Error.Message
		}
		for _, one := range c.Choices {
			s.text += one.Text
		}
		return false, ""
	}
	if e := s.events.Err(); e != nil {
		return false, "cut: " + e.Error()
	}
	return false, "a clean end"
}

// rest reads on to the end, and returns all of the text.
func (s *streaming) rest(t *testing.T) (text string, done bool, err string) {
	t.Helper()
	s.had = len(s.text)
	for !done && err == "" {
		done, err = s.next(t)
	}
	return s.text, done, err
}

// decodeDies kills decode and checks that the stream's client is told so: an error event and a cut, never a clean end, and
// no text that one engine would not have said.
func decodeDies(t *testing.T, decode engine, s *streaming) {
	t.Helper()
	decode.kill()
	text, done, err := s.rest(t)
	if done || !strings.HasPrefix(err, "event ") {
		t.Errorf("terminal event %v, %q; want an error event", done, err)
	}
	if _, after := s.next(t); !strings.HasPrefix(after, "cut: ") {
		t.Errorf("behind the error event: %q; want a cut", after)
	}
	if !strings.HasPrefix(s.want, text) || len(text) == len(s.want) {
		t.Errorf("the text is no part of one engine's: %.300q; want a part of %.300q", text, s.want)
	}
	t.Logf("the client has %d bytes of %d, and %s", len(text), len(s.want), err)
}
