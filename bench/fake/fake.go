package fake

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/valyala/fasthttp"
)

// Counts is what a fake engine was asked, by kind of leg.
type Counts struct {
	Prefill int64 `json:"prefill"` // prefill legs that came to a prefill engine
	Decode  int64 `json:"decode"`  // decode legs that came to a decode engine
	Other   int64 `json:"other"`   // requests without a hand-off, and legs that came to the wrong engine
	Opened  int64 `json:"opened"`  // connections that were accepted
}

// Minus is what was asked since an earlier reading.
func (c Counts) Minus(was Counts) Counts {
	return Counts{c.Prefill - was.Prefill, c.Decode - was.Decode, c.Other - was.Other, c.Opened - was.Opened}
}

// Plus adds what two engines were asked.
func (c Counts) Plus(other Counts) Counts {
	return Counts{c.Prefill + other.Prefill, c.Decode + other.Decode, c.Other + other.Other, c.Opened + other.Opened}
}

// Asked is all but the connections.
func (c Counts) Asked() Counts {
	c.Opened = 0
	return c
}

// AnswerTokens is how many tokens a fake decode answers, plain or streamed.
const AnswerTokens = 16

// engine is an engine that computes nothing and answers at once, in the shapes of stock vLLM or SGLang. It counts its legs.
type engine struct {
	mode, role             string
	prefill, decode, other atomic.Int64
	opened                 atomic.Int64
	plain, stream          []byte // a decode engine's answer
	handoff, first         []byte // a prefill engine's: plain, and streamed as SGLang may be asked to
}

// newEngine makes a fake of a mode (push, pull, sglang) and a role (prefill, decode).
func newEngine(mode, role string) *engine {
	f := &engine{mode: mode, role: role}
	text := bytes.Repeat([]byte(" word"), AnswerTokens)
	f.plain = fmt.Appendf(nil, `{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":%q,"tool_calls":[]},"logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":200,"total_tokens":%d,"completion_tokens":%d},"kv_transfer_params":null}`,
		Model, text, 200+AnswerTokens, AnswerTokens)
	for token := range AnswerTokens {
		finish := "null"
		if token == AnswerTokens-1 {
			finish = `"length"`
		}
		f.stream = fmt.Appendf(f.stream, `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":%q,"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":%s}]}`+"\n\n",
			Model, finish)
	}
	f.stream = append(f.stream, "data: [DONE]\n\n"...)
	f.handoff = fmt.Appendf(nil, `{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":200,"total_tokens":201,"completion_tokens":1},"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4,5,6,7]],"remote_engine_id":"7d6c0000-0000-4000-8000-00000000be0c","remote_request_id":"chatcmpl-bench-0-01234567","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":200,"transfer_mode":%q,"remote_prefill_cached_tokens":0}}`, Model, mode)
	if mode == SGLang {
		f.handoff = fmt.Appendf(nil, `{"id":"bench","object":"chat.completion","created":1700000000,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":{"prompt_tokens":200,"total_tokens":201,"completion_tokens":1}}`, Model)
		f.first = fmt.Appendf(nil, "data: {\"id\":\"bench\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":%q,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n", Model)
	}
	return f
}

// SGLang is a fake's mode in which both legs are one body with a room, and their engine tells them apart.
const SGLang = "sglang"

// Serve runs a fake engine until ctx ends: of mode push, pull or sglang and role prefill or decode. Before its first request
// it writes its address and a newline to out.
func Serve(ctx context.Context, mode, role string, out io.Writer) error {
	if !slices.Contains([]string{"push", "pull", SGLang}, mode) || role != "prefill" && role != "decode" {
		return fmt.Errorf("bench: a fake of mode %q and role %q; want push, pull or sglang, and prefill or decode", mode, role)
	}
	f := newEngine(mode, role)
	return serveCounted(ctx, f.serve, &f.opened, out)
}

// ServeHTTP serves h on a free port of loopback until ctx ends, and writes the address to out.
func ServeHTTP(ctx context.Context, h fasthttp.RequestHandler, out io.Writer) error {
	return serveCounted(ctx, h, &atomic.Int64{}, out)
}

// serveCounted is serveHTTP that counts the connections which it accepts.
func serveCounted(ctx context.Context, h fasthttp.RequestHandler, opened *atomic.Int64, out io.Writer) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	s := &fasthttp.Server{Handler: h, NoDefaultServerHeader: true, NoDefaultDate: true, MaxRequestBodySize: 64 << 20, CloseOnShutdown: true}
	s.ConnState = func(_ net.Conn, state fasthttp.ConnState) {
		if state == fasthttp.StateNew {
			opened.Add(1)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ln) }()
	fmt.Fprintln(out, ln.Addr())
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = s.Shutdown() // the bench is over; whoever is still connected is the bench itself
		err = <-ended
	}
	return err
}

func (f *engine) serve(q *fasthttp.RequestCtx) {
	switch string(q.Path()) {
	case "/v1/chat/completions", "/v1/completions":
		f.complete(q)
	case "/health":
	case "/metrics":
		q.SetContentType("text/plain")
	case CountsPath:
		b, _ := json.Marshal(Counts{f.prefill.Load(), f.decode.Load(), f.other.Load(), f.opened.Load()}) // integers always marshal
		q.SetContentType("application/json")
		q.SetBody(b)
	default:
		f.describe(q)
	}
}

// CountsPath is where a fake tells its Counts.
const CountsPath = "/bench/counts"

func (f *engine) complete(q *fasthttp.RequestCtx) {
	body := q.PostBody()
	leg := f.leg(body)
	leg.Add(1)
	streamed := IsTrue(body, "stream")
	if leg == &f.prefill {
		if streamed && f.mode == SGLang {
			answerStream(q, f.first)
			return
		}
		q.SetContentType("application/json")
		q.SetBody(f.handoff)
		return
	}
	if streamed {
		if p, ok := paceOf(body); ok {
			streamPaced(q, p)
			return
		}
		answerStream(q, f.stream)
		return
	}
	q.SetContentType("application/json")
	q.SetBody(f.plain)
}

func answerStream(q *fasthttp.RequestCtx, events []byte) {
	q.SetContentType("text/event-stream; charset=utf-8")
	q.SetBodyStream(bytes.NewReader(events), -1)
}

// IsTrue reports whether the bytes hold "key":true, with or without blanks after the colon.
func IsTrue(body []byte, key string) bool {
	quoted := strconv.AppendQuote(make([]byte, 0, 32), key)
	for {
		at := bytes.Index(body, quoted)
		if at < 0 {
			return false
		}
		body = body[at+len(quoted):]
		if rest, ok := bytes.CutPrefix(bytes.TrimLeft(body, " "), []byte(":")); ok {
			return bytes.HasPrefix(bytes.TrimLeft(rest, " "), []byte("true"))
		}
	}
}

// Model is the model the fakes serve.
const Model = "bench"

// ChatBody is a chat request of exactly size bytes.
func ChatBody(size int, stream bool) []byte {
	head := fmt.Sprintf(`{"model":%q,"stream":%t,"max_tokens":%d,"messages":[{"role":"user","content":"`, Model, stream, AnswerTokens)
	const tail = `"}]}`
	words := strings.Repeat("a block of KV cache travels from prefill to decode; ", size/40+1)
	return []byte(head + words[:max(1, size-len(head)-len(tail))] + tail)
}
