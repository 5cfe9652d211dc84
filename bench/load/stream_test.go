package load

import (
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/internal/benchtest"
)

// pacedFakes starts a prefill and a decode engine and the baseline proxy in front of them.
func pacedFakes(t *testing.T) (baseline, decode string) {
	start := func(role string) string {
		return benchtest.Listen(t, func(ctx context.Context, out io.Writer) error { return fake.Serve(ctx, "pull", role, out) })
	}
	prefill, decode := start("prefill"), start("decode")
	return benchtest.Listen(t, func(ctx context.Context, out io.Writer) error {
		return fake.ServeBaseline(ctx, "pull", prefill, decode, out)
	}), decode
}

// TestStreamsAreWhole has streams through the baseline proxy, and twice on the fakes' connections: each has all its tokens, none before its
// time, and counts of legs are right.
func TestStreamsAreWhole(t *testing.T) {
	baseline, decode := pacedFakes(t)
	const n, every = 8, 2 * time.Millisecond
	for round := range 2 {
		begun := time.Now()
		held, err := StreamLoad{Address: baseline, Streams: n, Pace: fake.Pace{Tokens: 5, Every: every}}.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := held.Wait(); err != nil {
			t.Fatal(err)
		}
		g := held.Gaps()
		if g.tokens != 5*n || held.Arrived.Load() != 5*n {
			t.Errorf("%d tokens, counted %d; want %d", g.tokens, held.Arrived.Load(), 5*n)
		}
		for _, p := range held.each {
			if took := p.tokens[4].written.Sub(begun.Round(0)); took < 4*every {
				t.Errorf("the last of 5 tokens was written behind %v; want four times %v at least", took, every)
			}
		}
		counts := benchtest.Counted(t, decode)
		if want := (fake.Counts{Decode: int64(n * (round + 1))}); counts.Asked() != want {
			t.Errorf("the decode engine counts %+v; want %+v", counts, want)
		}
	}
}

// TestIdleStreamsEnd holds streams whose second token is far away: cut ends them, and their engine notices at once.
func TestIdleStreamsEnd(t *testing.T) {
	_, decode := pacedFakes(t)
	held, err := StreamLoad{Address: decode, Streams: 16, Opening: 4, Pace: fake.Pace{Tokens: 2, Every: time.Hour}}.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if held.Ctx.Err() != nil || held.Arrived.Load() != 16 {
		t.Errorf("%d tokens, %v; want one of each stream", held.Arrived.Load(), context.Cause(held.Ctx))
	}
	if err := held.Cut(); err != nil {
		t.Error(err)
	}
}

// TestStreamsOfNobody: a stream that cannot be opened ends all, and its error is told.
func TestStreamsOfNobody(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if _, err := (StreamLoad{Address: ln.Addr().String(), Streams: 4, Pace: fake.Pace{Tokens: 1}}).Open(t.Context()); err == nil {
		t.Error("4 streams of nobody were opened")
	}
}

// inChunks is an answer of the given chunks.
func inChunks(parts ...string) string {
	var b strings.Builder
	b.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	for _, p := range parts {
		b.WriteString(strconv.FormatInt(int64(len(p)), 16) + "\r\n" + p + "\r\n")
	}
	return b.String() + "0\r\n\r\n"
}

// TestPacedStreamReads has a stream read answers however they were cut.
func TestPacedStreamReads(t *testing.T) {
	token := string(fake.AppendToken(nil, time.Unix(1700000000, 5)))
	for name, c := range map[string]struct {
		answer         string
		tokens, shared int
		ok             bool
	}{
		"a chunk a token":   {inChunks(token, ": keep-alive\n\n", token, fake.PacedDone), 2, 0, true},
		"two in a chunk":    {inChunks(token+token, token, fake.PacedDone), 3, 2, true},
		"cut in two":        {inChunks(token[:40], token[40:], token, fake.PacedDone), 2, 1, true},
		"without [DONE]":    {inChunks(token, token), 2, 0, false},
		"another's event":   {inChunks(token, "data: {}\n\n", fake.PacedDone), 1, 0, false},
		"behind [DONE]":     {inChunks(token, fake.PacedDone, token), 1, 0, false},
		"an event cut off":  {inChunks(token, fake.PacedDone, "data: "), 1, 0, false},
		"not in chunks":     {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 0, 0, false},
		"not 200":           {"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, 0, false},
		"a chunk of no end": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}}\r\n", 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 7, len(c.answer)} { // of what is read at once
				p := &pacedStream{all: &Streams{}, begun: func() {}}
				var in chunks
				var err error
				for rest := []byte(c.answer); len(rest) > 0 && err == nil; {
					n := min(size, len(rest))
					err = in.push(rest[:n], func(chunk []byte) error { return p.took(chunk, time.Now()) })
					rest = rest[n:]
				}
				whole := err == nil && in.ended && p.done && len(p.part) == 0
				if whole != c.ok || len(p.tokens) != c.tokens || c.ok && p.shared != c.shared {
					t.Errorf("read by %d: whole %t, %d tokens, %d of them not alone, %v; want %t, %d, %d", size, whole, len(p.tokens), p.shared, err, c.ok, c.tokens, c.shared)
				}
				for _, got := range p.tokens {
					if got.written.UnixNano() != time.Unix(1700000000, 5).UnixNano() {
						t.Errorf("written at %v", got.written)
					}
				}
			}
		})
	}
}

// TestGaps sums up tokens whose times are known.
func TestGaps(t *testing.T) {
	at := func(ms float64) time.Time { return time.Unix(1, int64(ms*1e6)) }
	s := &Streams{each: []*pacedStream{{shared: 1, tokens: []arrivedToken{{at(0), at(1)}, {at(5), at(6)}, {at(10), at(50)}, {at(15), at(51)}}}}}
	g := s.Gaps()
	if g.tokens != 4 || g.Own != 0.75 || g.Late != 40*time.Millisecond || g.Added != 39*time.Millisecond {
		t.Errorf("got %+v", g)
	}
}
