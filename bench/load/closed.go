package load

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"pdrouter/bench/fake"
)

// Closed is a closed loop: each connection is kept alive, and sends its next request when it has read the last answer.
type Closed struct {
	Address     string // host:port
	Connections int
	Body        []byte
	Stream      bool
}

// Result is what a load has seen.
type Result struct {
	Completed int             // answers that were whole and right
	Took      []time.Duration // each of them, from its request's first byte to its answer's last
	Elapsed   time.Duration   // until the last answer was read
}

// Run applies the load for d, and lets every request that was begun end. The first answer that is not 200, not whole
// or not what the fakes answer is an error: a figure beside wrong answers is worth nothing.
func (l Closed) Run(ctx context.Context, d time.Duration) (Result, error) {
	return ClosedLoop(ctx, d, l.Connections, l.Open)
}

// Asker makes one request after the other, each when the last was answered.
type Asker interface {
	Ask() error // an answer that is not right is an error
	Close()
}

// ClosedLoop has so many askers make requests for d, each at least one.
func ClosedLoop(ctx context.Context, d time.Duration, askers int, open func(context.Context, time.Time) (Asker, error)) (Result, error) {
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
			defer a.Close()
			for at := time.Now(); (len(took[i]) == 0 || at.Before(until)) && ctx.Err() == nil; {
				if err := a.Ask(); err != nil {
					stop(fmt.Errorf("bench: request %d of a connection: %w", len(took[i]), err))
					return
				}
				now := time.Now()
				took[i], at = append(took[i], now.Sub(at)), now
			}
		})
	}
	group.Wait()
	sum := Result{Elapsed: time.Since(began), Took: slices.Concat(took...)}
	sum.Completed = len(sum.Took)
	return sum, context.Cause(ctx)
}

// Open opens one connection of the load.
func (l Closed) Open(ctx context.Context, deadline time.Time) (Asker, error) {
	w, err := Dial(ctx, l.Address, deadline)
	if err != nil {
		return nil, err
	}
	return routed{Closed: l, Conn: w, request: AppendRequest(nil, l.Body)}, nil
}

// routed asks a router.
type routed struct {
	Closed
	*Conn
	request []byte
}

func (r routed) Ask() error {
	if err := r.Send(r.request); err != nil {
		return err
	}
	if err := r.Receive(); err != nil {
		return err
	}
	return r.Check(r.Answer.StatusCode(), r.Answer.Body())
}

// Conn is one connection that is kept alive.
type Conn struct {
	conn   net.Conn
	in     *bufio.Reader
	Answer fasthttp.Response // the last
}

// Dial connects to host:port. Nothing may take longer than until the deadline.
func Dial(ctx context.Context, address string, deadline time.Time) (*Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return &Conn{conn: conn, in: bufio.NewReaderSize(conn, 16<<10)}, conn.SetDeadline(deadline)
}

func (w *Conn) Send(request []byte) error {
	_, err := w.conn.Write(request)
	return err
}

func (w *Conn) Receive() error {
	if err := w.Answer.Read(w.in); err != nil {
		return fmt.Errorf("its answer: %w", err)
	}
	return nil
}

func (w *Conn) Close() { _ = w.conn.Close() } // its requests are over

// AppendRequest appends a request for a completion of chat.
func AppendRequest(dst, body []byte) []byte {
	dst = append(dst, "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: "...)
	dst = append(strconv.AppendInt(dst, int64(len(body)), 10), "\r\n\r\n"...)
	return append(dst, body...)
}

// Check compares an answer with what the fake decode engine answers.
func (l Closed) Check(status int, body []byte) error {
	words := bytes.Count(body, []byte(" word"))
	if status != fasthttp.StatusOK || words != fake.AnswerTokens || bytes.Contains(body, []byte(`"kv_transfer_params":{`)) {
		return fmt.Errorf("bench: status %d with %d tokens; want 200 with %d and no hand-off: %.300s", status, words, fake.AnswerTokens, body)
	}
	if l.Stream && !bytes.HasSuffix(body, []byte("data: [DONE]\n\n")) {
		return fmt.Errorf("bench: a stream ends without [DONE]: %.300s", body[max(0, len(body)-300):])
	}
	return nil
}
