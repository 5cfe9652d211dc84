package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// benchModel is the model the fakes serve.
const benchModel = "bench"

// chatBody is a chat request of exactly size bytes.
func chatBody(size int, stream bool) []byte {
	head := fmt.Sprintf(`{"model":%q,"stream":%t,"max_tokens":%d,"messages":[{"role":"user","content":"`, benchModel, stream, answerTokens)
	const tail = `"}]}`
	words := strings.Repeat("a block of KV cache travels from prefill to decode; ", size/40+1)
	return []byte(head + words[:max(1, size-len(head)-len(tail))] + tail)
}

// load is a closed loop: each connection is kept alive, and sends its next request when it has read the last answer.
type load struct {
	address     string // host:port
	connections int
	body        []byte
	stream      bool
}

// loaded is what a load has seen.
type loaded struct {
	completed int             // answers that were whole and right
	took      []time.Duration // each of them, from its request's first byte to its answer's last
	elapsed   time.Duration   // until the last answer was read
}

// run applies the load for d, and lets every request that was begun end. The first answer that is not 200, not whole
// or not what the fakes answer is an error: a figure beside wrong answers is worth nothing.
func (l load) run(ctx context.Context, d time.Duration) (loaded, error) {
	return closedLoop(ctx, d, l.connections, l.open)
}

// asker makes one request after the other, each when the last was answered.
type asker interface {
	ask() error // an answer that is not right is an error
	close()
}

// closedLoop has so many askers make requests for d, each at least one.
func closedLoop(ctx context.Context, d time.Duration, askers int, open func(context.Context, time.Time) (asker, error)) (loaded, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	began := time.Now()
	until := began.Add(d)
	took := make([][]time.Duration, askers)
	var group sync.WaitGroup
	for i := range took {
		group.Go(func() {
			a, err := open(ctx, until.Add(30*time.Second))
			if err != nil {
				stop(err)
				return
			}
			defer a.close()
			for at := time.Now(); (len(took[i]) == 0 || at.Before(until)) && ctx.Err() == nil; {
				if err := a.ask(); err != nil {
					stop(fmt.Errorf("bench: request %d of a connection: %w", len(took[i]), err))
					return
				}
				now := time.Now()
				took[i], at = append(took[i], now.Sub(at)), now
			}
		})
	}
	group.Wait()
	sum := loaded{elapsed: time.Since(began), took: slices.Concat(took...)}
	sum.completed = len(sum.took)
	return sum, context.Cause(ctx)
}

// open opens one connection of the load.
func (l load) open(ctx context.Context, deadline time.Time) (asker, error) {
	w, err := dialWire(ctx, l.address, deadline)
	if err != nil {
		return nil, err
	}
	return routed{load: l, wire: w, request: appendRequest(nil, l.body)}, nil
}

// routed asks a router.
type routed struct {
	load
	*wire
	request []byte
}

func (r routed) ask() error {
	if err := r.send(r.request); err != nil {
		return err
	}
	if err := r.receive(); err != nil {
		return err
	}
	return r.check(r.answer.StatusCode(), r.answer.Body())
}

// wire is one connection that is kept alive.
type wire struct {
	conn   net.Conn
	in     *bufio.Reader
	answer fasthttp.Response // the last
}

// dialWire connects to host:port. Nothing may take longer than until the deadline.
func dialWire(ctx context.Context, address string, deadline time.Time) (*wire, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return &wire{conn: conn, in: bufio.NewReaderSize(conn, 16<<10)}, conn.SetDeadline(deadline)
}

func (w *wire) send(request []byte) error {
	_, err := w.conn.Write(request)
	return err
}

func (w *wire) receive() error {
	if err := w.answer.Read(w.in); err != nil {
		return fmt.Errorf("its answer: %w", err)
	}
	return nil
}

func (w *wire) close() { _ = w.conn.Close() } // its requests are over

// appendRequest appends a request for a completion of chat.
func appendRequest(dst, body []byte) []byte {
	dst = append(dst, "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: "...)
	dst = append(strconv.AppendInt(dst, int64(len(body)), 10), "\r\n\r\n"...)
	return append(dst, body...)
}

// check compares an answer with what the fake decode engine answers.
func (l load) check(status int, body []byte) error {
	words := bytes.Count(body, []byte(" word"))
	if status != fasthttp.StatusOK || words != answerTokens || bytes.Contains(body, []byte(`"kv_transfer_params":{`)) {
		return fmt.Errorf("bench: status %d with %d tokens; want 200 with %d and no hand-off: %.300s", status, words, answerTokens, body)
	}
	if l.stream && !bytes.HasSuffix(body, []byte("data: [DONE]\n\n")) {
		return fmt.Errorf("bench: a stream ends without [DONE]: %.300s", body[max(0, len(body)-300):])
	}
	return nil
}
