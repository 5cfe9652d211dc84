package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/bench/fake"
	"pdrouter/bench/internal/benchtest"
)

// said is a part of an answer, and how long the engine waits before it.
type said struct {
	after time.Duration
	bytes string
}

// chunked is text as one chunk of an answer.
func chunked(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

func content(text string) string {
	return chunked(fmt.Sprintf("data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", text))
}

const (
	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	roleChunk  = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
	usageChunk = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"
	doneChunk  = "data: [DONE]\n\n"
	lastChunk  = "0\r\n\r\n"
)

// engineOf is an engine in the bubble's time: to each request that it reads it answers what the script says of its body.
func engineOf(script func(body string) []said) (dial func(context.Context) (net.Conn, error), dialled *atomic.Int64) {
	dialled = new(atomic.Int64)
	return func(context.Context) (net.Conn, error) {
		dialled.Add(1)
		here, there := net.Pipe()
		go func() {
			defer there.Close()
			in := bufio.NewReader(there)
			for {
				q, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				body, _ := io.ReadAll(q.Body)
				for _, s := range script(string(body)) {
					time.Sleep(s.after)
					if s.bytes == "" {
						return
					}
					if _, err := io.WriteString(there, s.bytes); err != nil {
						return
					}
				}
			}
		}()
		return here, nil
	}, dialled
}

const ms = time.Millisecond

// TestOpenLoop: requests are sent when they are to be, however long those before them take, and every chunk has its time.
func TestOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, dialled := engineOf(func(string) []said {
			return []said{{0, streamHead + chunked(roleChunk)}, {200 * ms, content("a")}, {20 * ms, content("b") + content("c")}, {30 * ms, chunked(usageChunk + doneChunk)}, {0, lastChunk}}
		})
		c := Opener{Dial: dial}
		got, err := c.run(t.Context(), []Arrival{{At: 0, Body: []byte("x"), Tokens: 4}, {At: 100 * ms, Body: []byte("x"), Tokens: 4}, {At: 400 * ms, Body: []byte("x")}, {At: time.Minute, Body: []byte("x")}})
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range got {
			if err := o.Fault(); err != nil || o.Sent != o.At || o.Counted != 4 || len(o.Chunks) != 3 || o.usage.Details.Cached != 4 {
				t.Errorf("%d: %v: %+v", i, err, o)
			}
			if d := cmp.Diff([]time.Duration{o.At + 200*ms, o.At + 220*ms, o.At + 220*ms}, o.Chunks); d != "" {
				t.Error(d)
			}
			if o.Ended != o.At+250*ms {
				t.Errorf("%d ended at %v", i, o.Ended)
			}
		}
		if dialled.Load() != 3 {
			t.Errorf("%d connections; want one for each of two requests under way at once, used again, and one a minute later", dialled.Load())
		}
	})
}

// TestOpenLoopLate: where the client itself is late the time counts from when it should have sent.
func TestOpenLoopLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, _ := engineOf(func(string) []said {
			return []said{{10 * ms, streamHead + content("a") + chunked(doneChunk) + lastChunk}}
		})
		slow := func(ctx context.Context) (net.Conn, error) {
			time.Sleep(70 * ms)
			return dial(ctx)
		}
		c := Opener{Dial: slow}
		got, err := c.run(t.Context(), []Arrival{{At: 50 * ms, Body: []byte("x"), Tokens: 1}})
		if err != nil || got[0].Fault() != nil || got[0].Ttft() != 80*ms {
			t.Errorf("got %+v, %v; want a first token after 80ms", got, err)
		}
	})
}

// TestOpenLoopFaults: whatever is not the whole answer that was asked for is told, and its connection is not used again.
func TestOpenLoopFaults(t *testing.T) {
	for name, c := range map[string]struct {
		answer []said
		want   string
		status int
	}{
		"refused":       {[]said{{0, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"}}, "status 503: busy", 503},
		"no stream":     {[]said{{0, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"}}, "status 200: {}", 200},
		"cut":           {[]said{{0, streamHead + content("a")}, {ms, ""}}, "after 1 chunks", 200},
		"no [DONE]":     {[]said{{0, streamHead + content("a") + lastChunk}}, "without [DONE]", 200},
		"not its end":   {[]said{{0, streamHead + content("a") + chunked(doneChunk)}, {ms, ""}}, "unexpected EOF", 200},
		"no trailer":    {[]said{{0, streamHead + content("a") + chunked(doneChunk) + "0\r\n"}, {ms, ""}}, "a stream's end: EOF", 200},
		"an error":      {[]said{{0, streamHead + content("a") + chunked("data: {\"error\":{\"message\":\"gone\"}}\n\n") + lastChunk}}, "gone", 200},
		"too few":       {[]said{{0, streamHead + content("a") + chunked(doneChunk) + lastChunk}}, "1 tokens; want 2", 200},
		"nothing":       {[]said{{0, streamHead + chunked(roleChunk+doneChunk) + lastChunk}}, "0 chunks", 200},
		"without words": {[]said{{0, ""}}, "head", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dial, _ := engineOf(func(string) []said { return c.answer })
				loop := Opener{Dial: dial}
				got, err := loop.run(t.Context(), []Arrival{{Body: []byte("x"), Tokens: 2}})
				if err != nil {
					t.Fatal(err)
				}
				if fault := got[0].Fault(); fault == nil || !strings.Contains(fault.Error(), c.want) || got[0].Status != c.status {
					t.Errorf("got %v, status %d; want %q", fault, got[0].Status, c.want)
				}
				sum := Summarise(got, SLO{})
				if void := sum.Verdict(c.status == 503); (void == nil) != (c.status == 503) || void != nil && !errors.Is(void, ErrVoid) {
					t.Errorf("got %v; want a void run unless the request may be refused", void)
				}
				synctest.Wait() // the engine's goroutines end because the connections are closed
			})
		})
	}
}

// TestOpenLoopEnds: the end of the context ends what is under way and what has not begun.
func TestOpenLoopEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, _ := engineOf(func(string) []said { return []said{{0, streamHead + content("a")}, {time.Hour, ""}} })
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		c := Opener{Dial: dial}
		got, err := c.run(ctx, []Arrival{{At: 0, Body: []byte("x")}, {At: time.Second, Body: []byte("x")}, {At: 3 * time.Second}})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(c.Began) != 2*time.Second {
			t.Errorf("got %v after %v", err, time.Since(c.Began))
		}
		for i, o := range got {
			if !errors.Is(o.Err, context.DeadlineExceeded) || o.Whole {
				t.Errorf("%d: %+v", i, o)
			}
		}
		time.Sleep(time.Hour)
		if _, err := c.run(t.Context(), []Arrival{{At: 1}, {At: 0}}); err == nil {
			t.Error("arrivals that go back in time are taken")
		}
	})
}

// TestOpenLoopOverTCP: over real connections, at a fake engine, the answers are whole.
func TestOpenLoopOverTCP(t *testing.T) {
	baseline, _ := benchtest.Behind(t, "pull")
	var arrivals []Arrival
	for _, at := range Poisson(1000, 30, 1) {
		arrivals = append(arrivals, Arrival{At: at, Body: fake.ChatBody(1024, true), Tokens: fake.AnswerTokens})
	}
	got, err := OpenLoop(t.Context(), baseline, arrivals)
	if err != nil {
		t.Fatal(err)
	}
	if err := Summarise(got, SLO{}).Verdict(false); err != nil {
		t.Error(err)
	}
}

func TestBeginsWith(t *testing.T) {
	for data, want := range map[string]bool{
		`{"content":"a"}`: true, `{"content": "a"}`: true, `{"content":""}`: false, `{"content":null}`: false,
		`{"reasoning_content":"a","content":""}`: false, `{"role":"content","content":"b"}`: true, `{"content"`: false, `{"content":`: false, `{"content":"`: false, `{"content":" "}`: true,
	} {
		if got := beginsWith([]byte(data), "content", '"', '"'); got != want {
			t.Errorf("%s: got %t", data, got)
		}
	}
	if !beginsWith([]byte(`{"choices": [{}]}`), "choices", '[', ']') || beginsWith([]byte(`{"choices":[]}`), "choices", '[', ']') {
		t.Error("choices")
	}
}

// TestPoisson: the same seed gives the same times, in order, at about the rate.
func TestPoisson(t *testing.T) {
	times := Poisson(20, 10000, 3)
	if d := cmp.Diff(times, Poisson(20, 10000, 3)); d != "" {
		t.Error(d)
	}
	for i := 1; i < len(times); i++ {
		if times[i] < times[i-1] {
			t.Fatalf("time %d is before the one that it follows", i)
		}
	}
	if mean := times[len(times)-1].Seconds() / 10000 * 20; mean < 0.95 || mean > 1.05 {
		t.Errorf("the mean gap is %.3f of what the rate says", mean)
	}
}
