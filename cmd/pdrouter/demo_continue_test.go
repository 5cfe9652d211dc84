package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/demo"
)

// slowStep is what a token costs the decode engine that is killed, in microseconds: an answer takes it most of a minute, so that whatever the
// clients wait for comes in the middle of one.
const slowStep = 300_000

// longAnswer is how many tokens are asked for.
const longAnswer = 150

// startBroken starts a gateway with one prefill engine and two decode engines, of which the first takes its time, and one engine
// alone. after is the policy's word for what happens to streams that fail; "" leaves the default.
func startBroken(t *testing.T, ctx context.Context, after string) *demo.Fleet {
	t.Helper()
	f, take, must := bareFleet(t, 3+2*3+1)
	clients, agents, operations := take(), take(), take()
	f.Client, f.Operations = "http://"+clients, "http://"+operations
	for _, e := range []demo.Engine{{Name: "prefill-0", Role: "prefill", TP: 2}, {Name: "decode-0", Role: "decode", TP: 1}, {Name: "decode-1", Role: "decode", TP: 2}} {
		e.Address, e.Control = take(), take()
		f.Engines = append(f.Engines, e)
	}
	must(f.WriteKeys())
	config := f.Config(clients, agents, operations) + "limits: {retry_floor: 20}\n"
	if after != "" {
		const decode = "decode: round_robin"
		config = strings.Replace(config, decode, decode+", after_failure: "+after, 1)
	}
	must(os.WriteFile(f.Path("pdrouter.yaml"), []byte(config), 0o600))
	must(f.Start("gateway", "serve", "-c", f.Path("pdrouter.yaml")))
	for _, e := range f.Engines {
		cost := 0
		if e.Name == "decode-0" {
			cost = slowStep
		}
		must(f.StartEngine(e, agents, "--transport", "tcp", "--decode-us-per-step", fmt.Sprint(cost)))
	}
	must(f.StartAlone(take()))
	must(f.Wait(ctx))
	served, asked := map[string]bool{}, 0
	until(t, "both decode engines serve what prefill has read", func() bool {
		asked++ // a prompt that decode has served before is not split
		body := fmt.Sprintf(`{"model":%q,"prompt":"%d. %s","max_tokens":2}`, demo.Model, asked, strings.Repeat("Are you there? ", 8))
		_, header := askRoute(t, ctx, f.Client+"/v1/completions", body)
		if header.Get("X-Pdrouter-Prefill") != "" {
			served[header.Get("X-Pdrouter-Decode")] = true
		}
		return len(served) == 2
	})
	return f
}

// telling is one stream that a client reads event by event.
type telling struct {
	route, body    string
	resp           *http.Response
	lines          *bufio.Scanner
	decode, id     string // of the answer's head
	text           string
	ids            map[string]bool // of the answer; one, if it is one answer
	finishes, done int
	usage          string
	failure        string // the type of the error event
	last           string // event
}

func newTelling(t *testing.T, ctx context.Context, base string, n int) *telling {
	t.Helper()
	s := &telling{route: "/v1/completions", ids: map[string]bool{}}
	story := fmt.Sprintf("Story %d. %s", n, strings.Repeat("And nothing may be lost on the way. ", n+3))
	prompt := fmt.Sprintf(`"prompt":%q`, story)
	if n/2%2 == 1 { // of both engines, which take turns
		s.route, prompt = "/v1/chat/completions", fmt.Sprintf(`"messages":[{"role":"user","content":%q}]`, story)
	}
	s.body = fmt.Sprintf(`{"model":%q,%s,"max_tokens":%d,"ignore_eos":true,"temperature":0`, demo.Model, prompt, longAnswer)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+s.route, strings.NewReader(s.body+`,"stream":true,"stream_options":{"include_usage":true}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if s.resp, err = http.DefaultClient.Do(req); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.resp.Body.Close() })
	if s.resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(s.resp.Body)
		t.Fatalf("status %d: %s", s.resp.StatusCode, b)
	}
	s.decode, s.id = s.resp.Header.Get("X-Pdrouter-Decode"), s.resp.Header.Get("X-Request-Id")
	s.lines = bufio.NewScanner(s.resp.Body)
	return s
}

// read takes n events more, or all there are if n is below 0. It returns how the connection ended, nil if it did not, or in order.
func (s *telling) read(n int) error {
	for ; n != 0 && s.lines.Scan(); n-- {
		data, found := strings.CutPrefix(s.lines.Text(), "data: ")
		if !found {
			n++
			continue
		}
		if s.last = data; data == "[DONE]" {
			s.done++
			continue
		}
		var v struct {
			ID      string
			Error   *struct{ Type string }
			Usage   *json.RawMessage
			Choices []struct {
				Text   string
				Delta  struct{ Content string }
				Reason *string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			return fmt.Errorf("event %q: %w", data, err)
		}
		if v.Error != nil {
			s.failure = v.Error.Type
			continue
		}
		s.ids[v.ID] = true
		for _, c := range v.Choices {
			if s.text += c.Text + c.Delta.Content; c.Reason != nil {
				s.finishes++
			}
		}
		if v.Usage != nil {
			s.usage += string(*v.Usage)
		}
		if strings.Contains(data, `token_ids":[`) {
			return fmt.Errorf("the client was told of tokens: %s", data)
		}
	}
	return s.lines.Err()
}

// want is what one engine alone answers: its text, and the tokens that it counts.
func (s *telling) want(t *testing.T, ctx context.Context, f *demo.Fleet) (text string, prompt, output int) {
	t.Helper()
	raw, _ := askRoute(t, ctx, f.Alone+s.route, s.body+"}")
	text, err := demo.Content([]byte(raw))
	var v struct {
		Usage struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		}
	}
	if err = errors.Join(err, json.Unmarshal([]byte(raw), &v)); err != nil || text == "" || v.Usage.Completion != longAnswer {
		t.Fatalf("an engine alone: %v in %s", err, raw)
	}
	return text, v.Usage.Prompt, v.Usage.Completion
}

// tellings opens streams until some are from the engine that is to be killed, reads a few events of each of these, a different
// number of each, and kills it.
func tellings(t *testing.T, ctx context.Context, f *demo.Fleet) (broken, whole []*telling) {
	t.Helper()
	for n := 0; len(broken) < 3; n++ {
		if n == 20 {
			t.Fatalf("of %d streams %d are decode-0's", n, len(broken))
		}
		if s := newTelling(t, ctx, f.Client, n); s.decode == "decode-0" {
			broken = append(broken, s)
		} else {
			whole = append(whole, s)
		}
	}
	for i, s := range broken {
		if err := s.read(2 + i); err != nil || s.text == "" {
			t.Fatalf("stream %d: %q, %v", i, s.text, err)
		}
	}
	victim := processOf(f, "decode-0")
	if err := victim.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-victim.Done
	victim.Err = nil // its end was ours
	for i, e := range f.Engines {
		if e.Name == victim.Name {
			f.Engines = append(f.Engines[:i:i], f.Engines[i+1:]...) // the living
			break
		}
	}
	return broken, whole
}

// rest reads the streams to their ends, all at once, and returns how each ended.
func rest(streams []*telling) []error {
	ends := make([]error, len(streams))
	var wg sync.WaitGroup
	for i, s := range streams {
		wg.Go(func() { ends[i] = s.read(-1) })
	}
	wg.Wait()
	return ends
}

// TestFault53ContinuedOverProcesses kills a decode engine with signal 9 while several streams come from it. With after_failure:
// continue each client has one stream, with the text and the usage of one engine; by default it has an error and a cut.
func TestFault53ContinuedOverProcesses(t *testing.T) {
	t.Parallel() // it waits for processes more than it works
	for _, after := range []string{"continue", ""} {
		t.Run(map[string]string{"continue": "continue", "": "default"}[after], func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			f := startBroken(t, ctx, after)
			broken, whole := tellings(t, ctx, f)
			ends := rest(append(broken, whole...))
			for i, s := range append(broken, whole...) {
				text, prompt, output := s.want(t, ctx, f)
				cut := i < len(broken) && after == ""
				if cut {
					if s.failure == "" || s.done != 0 || s.finishes != 0 || !errors.Is(ends[i], io.ErrUnexpectedEOF) || !strings.HasPrefix(s.last, `{"error":`) {
						t.Errorf("stream %d: error type %q, %d times [DONE], %d ends, %v; last event %s", i, s.failure, s.done, s.finishes, ends[i], s.last)
					}
					if !strings.HasPrefix(text, s.text) || s.text == text {
						t.Errorf("stream %d: %q is no part of %q", i, s.text, text)
					}
				} else if s.text != text || s.failure != "" || s.done != 1 || s.finishes != 1 || len(s.ids) != 1 || ends[i] != nil || s.last != "[DONE]" {
					t.Errorf("stream %d, %s: error type %q, %d times [DONE], %d ends, ids %v, %v\ngot  %q\nwant %q", i, s.decode, s.failure, s.done, s.finishes, s.ids, ends[i], s.text, text)
				}
				var counted struct {
					Prompt int `json:"prompt_tokens"`
					Total  int `json:"total_tokens"`
					Output int `json:"completion_tokens"`
				}
				if !cut {
					if err := json.Unmarshal([]byte(s.usage), &counted); err != nil || counted.Prompt != prompt || counted.Output != output || counted.Total != prompt+output {
						t.Errorf("stream %d: usage %s, %v; want %d and %d", i, s.usage, err, prompt, output)
					}
				}
				checkBroken(f, t, ctx, i, s, i < len(broken), after)
			}
			if err := f.Settled(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// checkBroken compares what the gateway has noted of a stream.
func checkBroken(f *demo.Fleet, t *testing.T, ctx context.Context, i int, s *telling, broken bool, after string) {
	t.Helper()
	var sum struct {
		Outcome   string `json:"outcome"`
		Reason    string `json:"reason"`
		Decode    string `json:"decode"`
		Prefill   string `json:"prefill"`
		Continued int    `json:"continued"`
		Output    int    `json:"output_tokens"`
	}
	until(t, "the gateway has noted the stream", func() bool {
		return f.Fetch(ctx, f.Operations+"/requests?id="+s.id, &sum) == nil
	})
	want := sum
	want.Outcome, want.Decode, want.Prefill, want.Output, want.Continued = "completed", "decode-1", "prefill-0", longAnswer, 0
	switch {
	case broken && after == "":
		want.Outcome, want.Decode, want.Reason, want.Output = "failed_after", "decode-0", "stream_cut", sum.Output
	case broken:
		want.Continued = 1
	}
	if sum != want {
		t.Errorf("stream %d: %+v; want %+v", i, sum, want)
	}
}
