package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http/httputil"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// Arrival is one request of an open loop: a stream that is asked for at its time, whatever became of those before it.
type Arrival struct {
	At     time.Duration // intended, from the loop's beginning
	Path   string        // "" is /v1/chat/completions
	Body   []byte        // asks for a stream; with stream_options.include_usage the engine's own counts are known
	Prompt int           // tokens of the prompt, for whoever sums up
	Tokens int           // that the answer is to have; 0 is any number
}

// Outcome is what became of an arrival. All times are from the loop's beginning.
type Outcome struct {
	Arrival
	Sent    time.Duration   // when the request began to be written: after at where the client was late
	Ended   time.Duration   // when its answer was read, or nothing more was to come
	Status  int             // 0: no answer
	Chunks  []time.Duration // when each was read, from the first with content on
	Counted int             // tokens of the answer: as the engine told, else the chunks with content
	usage   usage           // what the engine counted, if it told
	Whole   bool            // the stream was read to its end
	Err     error           // why it was not
}

// usage is what an engine counted.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// Poisson returns the times of n arrivals at a mean rate a second, the same for the same seed.
func Poisson(rate float64, n int, seed uint64) []time.Duration {
	r := rand.New(rand.NewPCG(seed, 0))
	times := make([]time.Duration, n)
	var at float64
	for i := range times {
		at += r.ExpFloat64() / rate
		times[i] = time.Duration(at * float64(time.Second))
	}
	return times
}

// OpenLoop sends each arrival at its time and waits for all of their answers. outcomes[i] is that of arrivals[i], whatever it
// is: an error means that ctx ended first or that the arrivals are not in order of time. The caller bounds it by ctx.
func OpenLoop(ctx context.Context, address string, arrivals []Arrival) ([]Outcome, error) {
	var d net.Dialer
	c := Opener{Dial: func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }}
	return c.run(ctx, arrivals)
}

// Opener is an open loop's client: a connection for each request under way, kept alive for those after it.
type Opener struct {
	Dial  func(context.Context) (net.Conn, error)
	Began time.Time

	mu   sync.Mutex
	idle []*kept // the last used at the end
}

// kept is a connection between two requests.
type kept struct {
	net.Conn
	in   *bufio.Reader
	left time.Time // when its last answer was read
}

// keptFor is how long a connection is used again: less than any server waits for the next request on one.
const keptFor = 2 * time.Second

func (c *Opener) run(ctx context.Context, arrivals []Arrival) ([]Outcome, error) {
	outcomes := make([]Outcome, len(arrivals))
	for i, a := range arrivals {
		if i > 0 && a.At < arrivals[i-1].At {
			return nil, fmt.Errorf("bench: arrival %d is at %v, before the one that it follows", i, a.At)
		}
		outcomes[i].Arrival = a
	}
	c.Began = time.Now()
	var group sync.WaitGroup
	for i := range outcomes {
		if c.until(ctx, arrivals[i].At) != nil {
			for j := i; j < len(outcomes); j++ {
				outcomes[j].Err = context.Cause(ctx)
			}
			break
		}
		group.Go(func() { c.Request(ctx, &outcomes[i]) })
	}
	group.Wait()
	for _, k := range c.idle {
		_ = k.Close()
	}
	return outcomes, context.Cause(ctx)
}

// until waits for a time of the loop.
func (c *Opener) until(ctx context.Context, at time.Duration) error {
	wait := time.NewTimer(at - time.Since(c.Began))
	defer wait.Stop()
	select {
	case <-wait.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Request makes one request and fills in its outcome.
func (c *Opener) Request(ctx context.Context, o *Outcome) {
	o.Sent = time.Since(c.Began)
	k, err := c.connection(ctx)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { _ = k.SetDeadline(time.Unix(1, 0)) })
		var again bool
		again, err = c.exchange(k, o)
		if stop() && again {
			c.keep(k)
		} else {
			_ = k.Close()
		}
	}
	if o.Ended = time.Since(c.Began); err != nil {
		o.Err = errors.Join(context.Cause(ctx), fmt.Errorf("bench: %w", err))
	}
}

// connection returns one that was kept, or a new one.
func (c *Opener) connection(ctx context.Context) (*kept, error) {
	c.mu.Lock()
	var old []*kept
	var k *kept
	if n := len(c.idle); n > 0 {
		if last := c.idle[n-1]; time.Since(last.left) < keptFor {
			k, c.idle = last, c.idle[:n-1]
		} else {
			old, c.idle = c.idle, nil // all others are older still
		}
	}
	c.mu.Unlock()
	for _, k := range old {
		_ = k.Close()
	}
	if k != nil {
		return k, nil
	}
	conn, err := c.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return &kept{Conn: conn, in: bufio.NewReaderSize(conn, 8<<10)}, nil
}

func (c *Opener) keep(k *kept) {
	k.left = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, k)
}

// exchange writes the request, reads its answer, and reports whether the connection can be used again.
func (c *Opener) exchange(k *kept, o *Outcome) (again bool, err error) {
	path := o.Path
	if path == "" {
		path = "/v1/chat/completions"
	}
	request := net.Buffers{fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, len(o.Body)), o.Body}
	if _, err := request.WriteTo(k.Conn); err != nil {
		return false, fmt.Errorf("a request: %w", err)
	}
	var head fasthttp.ResponseHeader
	if err := head.Read(k.in); err != nil {
		return false, fmt.Errorf("an answer's head: %w", err)
	}
	o.Status = head.StatusCode()
	body, end := answerBody(k.in, head.ContentLength())
	if o.Status != fasthttp.StatusOK || !bytes.HasPrefix(head.ContentType(), []byte("text/event-stream")) {
		said, err := io.ReadAll(io.LimitReader(body, 64<<10))
		return false, errors.Join(fmt.Errorf("status %d: %.300s", o.Status, said), err)
	}
	if err := c.events(bufio.NewReaderSize(body, 16<<10), o); err != nil {
		return false, err
	}
	if err := end(); err != nil {
		return false, fmt.Errorf("a stream's end: %w", err)
	}
	o.Whole = true
	return !head.ConnectionClose() && head.ContentLength() != -2, nil
}

// answerBody is the body of an answer whose header told of so many bytes, and what is to be called behind it.
func answerBody(in *bufio.Reader, length int) (io.Reader, func() error) {
	if length >= 0 {
		return io.LimitReader(in, int64(length)), func() error { return nil }
	}
	if length == -2 { // until the connection is closed, which no end of a stream is told from
		return in, func() error { return nil }
	}
	return httputil.NewChunkedReader(in), func() error {
		for { // the trailer's lines, the last of which is empty
			line, err := in.ReadSlice('\n')
			if err != nil || len(bytes.TrimSpace(line)) == 0 {
				return err
			}
		}
	}
}

// events reads a stream to its end. As vLLM's own benchmark has it, a chunk is an event with choices; unlike there, none is
// counted before the first with content, since some routers and engines begin with an empty one.
func (c *Opener) events(in *bufio.Reader, o *Outcome) error {
	contents, done := 0, false
	for {
		line, err := in.ReadSlice('\n')
		now := time.Since(c.Began)
		if err == io.EOF && len(line) == 0 {
			break
		}
		if err != nil {
			return fmt.Errorf("a stream after %d chunks: %w", len(o.Chunks), err)
		}
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		switch data = bytes.TrimSpace(data); {
		case bytes.Equal(data, []byte("[DONE]")):
			done = true
		case beginsWith(data, "choices", '[', ']'):
			content := beginsWith(data, "content", '"', '"') || beginsWith(data, "text", '"', '"')
			if content {
				contents++
			}
			if content || len(o.Chunks) > 0 {
				o.Chunks = append(o.Chunks, now)
			}
		case bytes.Contains(data, []byte(`"error"`)):
			return fmt.Errorf("a stream after %d chunks: %.300s", len(o.Chunks), data)
		}
		if bytes.Contains(data, []byte(`"completion_tokens"`)) {
			var told struct {
				Usage usage `json:"usage"`
			}
			if err := json.Unmarshal(data, &told); err != nil {
				return fmt.Errorf("an event with usage: %w: %.300s", err, data)
			}
			o.usage = told.Usage
		}
	}
	if o.Counted = contents; o.usage.Completion > 0 {
		o.Counted = o.usage.Completion
	}
	if !done {
		return fmt.Errorf("a stream ends without [DONE] after %d chunks: %w", len(o.Chunks), io.ErrUnexpectedEOF)
	}
	return nil
}

// beginsWith reports whether the bytes hold the key with a value that begins with open and does not end at once.
func beginsWith(data []byte, key string, open, shut byte) bool {
	for {
		at := bytes.Index(data, []byte(key))
		if at < 1 || at+len(key) >= len(data) {
			return false
		}
		quoted := data[at-1] == '"' && data[at+len(key)] == '"'
		if data = data[at+len(key):]; !quoted {
			continue
		}
		if value, ok := bytes.CutPrefix(bytes.TrimLeft(data[1:], " "), []byte(":")); ok {
			value = bytes.TrimLeft(value, " ")
			return len(value) > 1 && value[0] == open && value[1] != shut
		}
	}
}
