package load

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"pdrouter/bench/fake"
)

// StreamLoad is many streams at once, each on a connection of its own, from fakes that pace them.
type StreamLoad struct {
	Address string // host:port
	Streams int
	Opening int           // at once, until their first tokens are here; 0 is all
	Apart   time.Duration // between the starts of two
	fake.Pace
}

// Streams are the streams of a load under way.
type Streams struct {
	StreamLoad
	Arrived atomic.Int64 // that have come, of all
	stop    context.CancelCauseFunc
	Ctx     context.Context
	group   sync.WaitGroup
	each    []*pacedStream
}

// Open starts all streams and waits until each has its first token. Whatever goes wrong with one of them ends all. Behind it
// either wait or cut is to be called.
func (l StreamLoad) Open(ctx context.Context) (*Streams, error) {
	s := &Streams{StreamLoad: l}
	s.Ctx, s.stop = context.WithCancelCause(ctx)
	room := make(chan struct{}, cmp.Or(l.Opening, l.Streams))
	begun := make(chan struct{}, l.Streams)
	request := fake.PacedBody(l.Pace)
	request = fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(request), request)
	start := time.Now()
	for i := range l.Streams {
		if wait := time.Until(start.Add(time.Duration(i) * l.Apart)); wait > 0 {
			time.Sleep(wait)
		}
		room <- struct{}{}
		p := &pacedStream{all: s, begun: func() { begun <- struct{}{}; <-room }}
		s.each = append(s.each, p)
		s.group.Go(func() {
			err := p.run(request)
			if !p.started {
				p.begun()
			}
			if err != nil {
				s.stop(fmt.Errorf("bench: stream %d: %w", i, err))
			}
		})
	}
	for range l.Streams {
		<-begun
	}
	if s.Ctx.Err() != nil {
		return nil, s.Cut()
	}
	return s, nil
}

// errOver is the cause that ends streams which are wanted no more.
var errOver = errors.New("over")

// Cut closes the streams. What had gone wrong before is an error.
func (s *Streams) Cut() error {
	s.stop(errOver)
	s.group.Wait()
	if err := context.Cause(s.Ctx); !errors.Is(err, errOver) {
		return err
	}
	return nil
}

// Wait waits until all have ended, each with all of its tokens.
func (s *Streams) Wait() error {
	s.group.Wait()
	return s.Cut()
}

// pacedStream is one stream of a load.
type pacedStream struct {
	all     *Streams
	begun   func()
	started bool
	tokens  []arrivedToken
	shared  int    // tokens that did not come as one chunk of their own
	part    []byte // of an event that has not ended
	done    bool
}

// arrivedToken is when a token was written by its engine and read by its client.
type arrivedToken struct{ written, read time.Time }

// run asks, and reads until the stream ends.
func (p *pacedStream) run(request []byte) error {
	ctx := p.all.Ctx
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", p.all.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(request); err != nil {
		return err
	}
	var in chunks
	buf := make([]byte, 1<<10)
	for {
		n, err := conn.Read(buf)
		at := time.Now()
		if err == nil {
			err = in.push(buf[:n], func(chunk []byte) error { return p.took(chunk, at) })
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("behind %d tokens: %w", len(p.tokens), err)
		case in.ended && (!p.done || len(p.tokens) != p.all.Tokens || len(p.part) > 0):
			return fmt.Errorf("it ended behind %d tokens of %d, with [DONE]: %t", len(p.tokens), p.all.Tokens, p.done)
		case in.ended:
			return nil
		}
	}
}

// took takes a chunk of the stream, whose events are tokens, the end, or comments that keep the connection alive.
func (p *pacedStream) took(chunk []byte, at time.Time) error {
	n, cut := 0, len(p.part) > 0
	rest := chunk
	if cut {
		rest = append(p.part, chunk...)
	}
	for len(rest) > 0 {
		end := bytes.Index(rest, []byte("\n\n"))
		if end < 0 {
			break
		}
		event := rest[:end+2]
		rest = rest[end+2:]
		switch written, ok := fake.StampOf(event); {
		case ok && !p.done:
			p.tokens = append(p.tokens, arrivedToken{written, at})
			n++
		case string(event) == fake.PacedDone && !p.done:
			p.done = true
		case event[0] != ':':
			return fmt.Errorf("an event that no fake has sent: %.300q", event)
		}
	}
	p.part = append(p.part[:0], rest...)
	if p.all.Arrived.Add(int64(n)); n > 1 || cut || len(rest) > 0 {
		p.shared += n
	}
	if n > 0 && !p.started {
		p.started = true
		p.begun()
	}
	return nil
}

// chunks reads an answer of status 200 in chunks, as it comes.
type chunks struct {
	buf   []byte
	body  bool // the head is read
	ended bool
}

// push takes more bytes, and calls took for each chunk that is whole.
func (c *chunks) push(b []byte, took func([]byte) error) error {
	c.buf = append(c.buf, b...)
	rest := c.buf
	if !c.body {
		head, behind, ok := bytes.Cut(rest, []byte("\r\n\r\n"))
		if !ok {
			return nil
		}
		lower := bytes.ToLower(head)
		if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) || !bytes.Contains(lower, []byte("\r\ntransfer-encoding: chunked")) {
			return fmt.Errorf("not 200 in chunks: %.300q", rest)
		}
		c.body, rest = true, behind
	}
	for !c.ended {
		line, behind, ok := bytes.Cut(rest, []byte("\r\n"))
		if !ok {
			break
		}
		size, err := strconv.ParseUint(string(line), 16, 31)
		if err != nil {
			return fmt.Errorf("a chunk of %.20q bytes", line)
		}
		if len(behind) < int(size)+2 {
			break
		}
		if string(behind[size:size+2]) != "\r\n" {
			return fmt.Errorf("bytes behind a chunk: %.20q", behind[size:])
		}
		if c.ended = size == 0; !c.ended {
			if err := took(behind[:size]); err != nil {
				return err
			}
		}
		rest = behind[size+2:]
	}
	if c.ended && len(rest) > 0 {
		return fmt.Errorf("bytes behind the answer: %.300q", rest)
	}
	c.buf = c.buf[:copy(c.buf, rest)]
	return nil
}

// gaps is what a load's tokens have gone through.
type gaps struct {
	tokens int
	Own    float64       // the share of tokens that came in a chunk of their own
	Added  time.Duration // p99 of the time between two tokens at the client, less the same at the engine
	Late   time.Duration // the longest way of a token from engine to client
}

// Gaps sums up; the streams must have ended.
func (s *Streams) Gaps() gaps {
	var g gaps
	var client, engine []time.Duration
	shared := 0
	for _, p := range s.each {
		g.tokens += len(p.tokens)
		shared += p.shared
		for i, t := range p.tokens {
			g.Late = max(g.Late, t.read.Sub(t.written))
			if i > 0 {
				before := p.tokens[i-1]
				client = append(client, t.read.Sub(before.read))
				engine = append(engine, t.written.Sub(before.written))
			}
		}
	}
	g.Own = 1 - float64(shared)/float64(max(1, g.tokens))
	g.Added = percentile(client, 0.99) - percentile(engine, 0.99)
	return g
}

// percentile is the figure that the share p of all does not exceed; 0 of none.
func percentile(figures []time.Duration, p float64) time.Duration {
	if len(figures) == 0 {
		return 0
	}
	slices.Sort(figures)
	return figures[min(len(figures)-1, int(p*float64(len(figures))))]
}

// RaiseFiles lets this process, and those that it starts from now on, have as many files open as the system allows, and
// returns how many that are. Go raises its own limit by itself, but gives the old one to its children.
func RaiseFiles() (uint64, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("bench: limit of open files: %w", err)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("bench: limit of open files: %w", err)
	}
	return limit.Max, nil
}
