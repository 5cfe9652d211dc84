package bench

import (
	"bytes"
	"context"
	"io"

	"github.com/valyala/fasthttp"
)

// The floor: as little as a fasthttp proxy can do for a request of two legs. It makes the three exchanges by joining
// bytes, knows nothing of its engines, and checks, parses, chooses, counts, retries and logs nothing.
type floor struct {
	prefill, decode *fasthttp.HostClient
}

// ServeFloor runs the floor in front of one prefill and one decode engine (host:port) until ctx ends. It writes its
// address and a newline to out.
func ServeFloor(ctx context.Context, prefill, decode string, out io.Writer) error {
	client := func(address string, stream bool) *fasthttp.HostClient {
		return &fasthttp.HostClient{Addr: address, MaxConns: 8192, NoDefaultUserAgentHeader: true, StreamResponseBody: stream}
	}
	f := floor{client(prefill, false), client(decode, true)}
	return serveHTTP(ctx, f.serve, out)
}

const (
	askPrefill = `{"max_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null},`
	paramsKey  = `"kv_transfer_params":`
)

func (f floor) serve(q *fasthttp.RequestCtx) {
	if err := f.relay(q); err != nil {
		q.Error(err.Error(), fasthttp.StatusBadGateway)
	}
}

func (f floor) relay(q *fasthttp.RequestCtx) error {
	body := q.PostBody()
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	req.Header.SetMethod(fasthttp.MethodPost)
	req.Header.SetContentType("application/json")
	req.SetRequestURI(string(q.Path()))
	req.SetHost("engine")
	req.AppendBodyString(askPrefill)
	req.AppendBody(body[1:])
	if err := f.prefill.Do(req, resp); err != nil {
		return err
	}
	params := resp.Body()
	params = params[bytes.Index(params, []byte(paramsKey)):] // the last field, and flat: it ends at the first brace
	params = params[:bytes.IndexByte(params, '}')+1]
	req.ResetBody()
	req.AppendBodyString("{")
	req.AppendBody(params)
	req.AppendBodyString(",")
	req.AppendBody(body[1:])
	resp.Reset()
	if err := f.decode.Do(req, resp); err != nil {
		return err
	}
	q.SetStatusCode(resp.StatusCode())
	q.Response.Header.SetContentTypeBytes(resp.Header.ContentType())
	size := resp.Header.ContentLength()
	q.SetBodyStream(&relayed{resp.BodyStream(), resp}, size)
	return nil
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
