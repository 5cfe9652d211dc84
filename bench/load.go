package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
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
	completed int           // answers that were whole and right
	elapsed   time.Duration // until the last answer was read
}

// run applies the load for d, and lets every request that was begun end. The first answer that is not 200, not whole
// or not what the fakes answer is an error: a figure beside wrong answers is worth nothing.
func (l load) run(ctx context.Context, d time.Duration) (loaded, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	request := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(l.body), l.body)
	began := time.Now()
	until := began.Add(d)
	completed := make([]int, l.connections)
	var group sync.WaitGroup
	for i := range completed {
		group.Go(func() {
			n, err := l.connection(ctx, request, until)
			completed[i] = n
			if err != nil {
				stop(err)
			}
		})
	}
	group.Wait()
	sum := loaded{elapsed: time.Since(began)}
	for _, n := range completed {
		sum.completed += n
	}
	return sum, context.Cause(ctx)
}

// connection is one connection's loop.
func (l load) connection(ctx context.Context, request []byte, until time.Time) (int, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", l.address)
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(until.Add(30 * time.Second)); err != nil {
		return 0, err
	}
	var answer fasthttp.Response
	in := bufio.NewReaderSize(conn, 16<<10)
	n := 0
	for time.Now().Before(until) && ctx.Err() == nil {
		if _, err := conn.Write(request); err != nil {
			return n, fmt.Errorf("bench: request %d of a connection: %w", n, err)
		}
		if err := answer.Read(in); err != nil {
			return n, fmt.Errorf("bench: answer %d of a connection: %w", n, err)
		}
		if err := l.check(answer.StatusCode(), answer.Body()); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
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
