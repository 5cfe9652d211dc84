package fake

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"sync/atomic"

	"github.com/valyala/fasthttp"
)

// The baseline proxy: as little as a fasthttp proxy can do for a request of two legs. It makes the three exchanges by joining
// bytes, knows nothing of its engines, and checks, parses, chooses, counts, retries and logs nothing.
type baseline struct {
	prefill, decode *fasthttp.HostClient
	room            atomic.Uint64 // the next, SGLang's or a push's
}

// ServeBaseline runs the baseline proxy in front of one prefill and one decode engine (host:port) of a fake's mode until ctx ends. It writes
// its address and a newline to out.
func ServeBaseline(ctx context.Context, mode, prefill, decode string, out io.Writer) error {
	client := func(address string, stream bool) *fasthttp.HostClient {
		return &fasthttp.HostClient{Addr: address, MaxConns: 8192, NoDefaultUserAgentHeader: true, StreamResponseBody: stream}
	}
	f := &baseline{prefill: client(prefill, false), decode: client(decode, true)}
	legs := f.relay
	switch mode {
	case "push":
		legs = f.both
	case SGLang:
		legs = f.meet
	}
	return ServeHTTP(ctx, func(q *fasthttp.RequestCtx) {
		if err := legs(q); err != nil {
			q.Error(err.Error(), fasthttp.StatusBadGateway)
		}
	}, out)
}

const (
	AskPrefill = `{"max_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null},`
	paramsKey  = `"kv_transfer_params":`

	// The legs of a push, each up to its transfer's id, and what follows that.
	askPush    = `{"max_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null,"transfer_id":"`
	PushedTo   = `{"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"7d6c0000-0000-4000-8000-00000000be0c","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"transfer_id":"`
	BehindPush = `"},`
)

// relay is pull's: prefill's leg, and then decode's with what prefill answered.
func (f *baseline) relay(q *fasthttp.RequestCtx) error {
	req, resp := letter(q, AskPrefill), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	if err := f.prefill.Do(req, resp); err != nil {
		return err
	}
	params := ParamsIn(resp.Body())
	req.ResetBody()
	req.AppendBodyString("{")
	req.AppendBody(params)
	req.AppendBodyString(",")
	req.AppendBody(q.PostBody()[1:])
	resp.Reset()
	return f.decoded(q, req, resp)
}

// both is push's: prefill's leg beside decode's, each with a body of its own.
func (f *baseline) both(q *fasthttp.RequestCtx) error {
	id := strconv.FormatUint(f.room.Add(1), 10)
	return f.beside(q, letter(q, askPush, id, BehindPush), letter(q, PushedTo, id, BehindPush))
}

// meet is SGLang's: both legs at once, with one body.
func (f *baseline) meet(q *fasthttp.RequestCtx) error {
	ask := letter(q)
	ask.AppendBody(AppendRoom(make([]byte, 0, 96), f.room.Add(1)))
	ask.AppendBody(q.PostBody()[1:])
	req := letter(q)
	req.SetBodyRaw(ask.Body())
	return f.beside(q, ask, req)
}

// beside has prefill answer one request, of which nothing is read, and decode the other.
func (f *baseline) beside(q *fasthttp.RequestCtx, ask, req *fasthttp.Request) error {
	prefilled := make(chan error, 1)
	go func() {
		ignored := fasthttp.AcquireResponse()
		defer fasthttp.ReleaseResponse(ignored)
		prefilled <- f.prefill.Do(ask, ignored)
	}()
	err := f.decoded(q, req, fasthttp.AcquireResponse())
	err = errors.Join(err, <-prefilled)
	fasthttp.ReleaseRequest(req)
	fasthttp.ReleaseRequest(ask) // the last: both may have one body
	return err
}

// decoded gives the client decode's answer to a request, as it comes.
func (f *baseline) decoded(q *fasthttp.RequestCtx, req *fasthttp.Request, resp *fasthttp.Response) error {
	if err := f.decode.Do(req, resp); err != nil {
		return err
	}
	q.SetStatusCode(resp.StatusCode())
	q.Response.Header.SetContentTypeBytes(resp.Header.ContentType())
	q.SetBodyStream(&relayed{resp.BodyStream(), resp}, resp.Header.ContentLength())
	return nil
}

// letter is a request to an engine, whose body begins with so much in place of the client's brace; without a head there is none yet.
func letter(q *fasthttp.RequestCtx, head ...string) *fasthttp.Request {
	req := fasthttp.AcquireRequest()
	req.Header.SetMethod(fasthttp.MethodPost)
	req.Header.SetContentType("application/json")
	req.SetRequestURI(string(q.Path()))
	req.SetHost("engine")
	for _, part := range head {
		req.AppendBodyString(part)
	}
	if len(head) > 0 {
		req.AppendBody(q.PostBody()[1:])
	}
	return req
}

// ParamsIn is the hand-off in prefill's answer, with its key: the last field, and flat, so it ends at the first brace.
func ParamsIn(answer []byte) []byte {
	params := answer[bytes.Index(answer, []byte(paramsKey)):]
	return params[:bytes.IndexByte(params, '}')+1]
}

// AppendRoom begins a body with the members that SGLang's legs have in common.
func AppendRoom(dst []byte, room uint64) []byte {
	dst = append(dst, `{"bootstrap_host":"127.0.0.1","bootstrap_port":8998,"bootstrap_room":`...)
	return append(strconv.AppendUint(dst, room, 10), ',')
}

// relayed gives the decode engine's connection back once its answer was read.
type relayed struct {
	io.Reader
	resp *fasthttp.Response
}

func (r *relayed) Close() error {
	err := r.resp.CloseBodyStream()
	fasthttp.ReleaseResponse(r.resp)
	return err
}
