package bench

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pacedFakes starts a prefill and a decode engine and the floor in front of them.
func pacedFakes(t *testing.T) (floor, decode string) {
	fake := func(role string) string {
		return listen(t, func(ctx context.Context, out io.Writer) error { return ServeFake(ctx, "pull", role, out) })
	}
	prefill, decode := fake("prefill"), fake("decode")
	return listen(t, func(ctx context.Context, out io.Writer) error { return ServeFloor(ctx, "pull", prefill, decode, out) }), decode
}

// TestStreamsAreWhole has streams through the floor, and twice on the fakes' connections: each has all its tokens, none before its
// time, and counts of legs are right.
func TestStreamsAreWhole(t *testing.T) {
	floor, decode := pacedFakes(t)
	const n, every = 8, 2 * time.Millisecond
	for round := range 2 {
		begun := time.Now()
		held, err := streamLoad{address: floor, streams: n, pace: pace{Tokens: 5, Every: every}}.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := held.wait(); err != nil {
			t.Fatal(err)
		}
		g := held.gaps()
		if g.tokens != 5*n || held.tokens.Load() != 5*n {
			t.Errorf("%d tokens, counted %d; want %d", g.tokens, held.tokens.Load(), 5*n)
		}
		for _, p := range held.each {
			if took := p.tokens[4].written.Sub(begun.Round(0)); took < 4*every {
				t.Errorf("the last of 5 tokens was written behind %v; want four times %v at least", took, every)
			}
		}
		counts, err := countsOf(t.Context(), decode)
		if want := (Counts{Decode: int64(n * (round + 1))}); err != nil || counts.asked() != want {
			t.Errorf("the decode engine counts %+v, %v; want %+v", counts, err, want)
		}
	}
}

// TestIdleStreamsEnd holds streams whose second token is far away: cut ends them, and their engine notices at once.
func TestIdleStreamsEnd(t *testing.T) {
	_, decode := pacedFakes(t)
	held, err := streamLoad{address: decode, streams: 16, opening: 4, pace: pace{Tokens: 2, Every: time.Hour}}.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if held.ctx.Err() != nil || held.tokens.Load() != 16 {
		t.Errorf("%d tokens, %v; want one of each stream", held.tokens.Load(), context.Cause(held.ctx))
	}
	if err := held.cut(); err != nil {
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
	if _, err := (streamLoad{address: ln.Addr().String(), streams: 4, pace: pace{Tokens: 1}}).open(t.Context()); err == nil {
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
	token := string(appendToken(nil, time.Unix(1700000000, 5)))
	for name, c := range map[string]struct {
		answer         string
		tokens, shared int
		ok             bool
	}{
		"a chunk a token":   {inChunks(token, ": keep-alive\n\n", token, pacedDone), 2, 0, true},
		"two in a chunk":    {inChunks(token+token, token, pacedDone), 3, 2, true},
		"cut in two":        {inChunks(token[:40], token[40:], token, pacedDone), 2, 1, true},
		"without [DONE]":    {inChunks(token, token), 2, 0, false},
		"another's event":   {inChunks(token, "data: {}\n\n", pacedDone), 1, 0, false},
		"behind [DONE]":     {inChunks(token, pacedDone, token), 1, 0, false},
		"an event cut off":  {inChunks(token, pacedDone, "data: "), 1, 0, false},
		"not in chunks":     {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 0, 0, false},
		"not 200":           {"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0, 0, false},
		"a chunk of no end": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}}\r\n", 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 7, len(c.answer)} { // of what is read at once
				p := &pacedStream{all: &streams{}, begun: func() {}}
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
	s := &streams{each: []*pacedStream{{shared: 1, tokens: []arrivedToken{{at(0), at(1)}, {at(5), at(6)}, {at(10), at(50)}, {at(15), at(51)}}}}}
	g := s.gaps()
	if g.tokens != 4 || g.own != 0.75 || g.late != 40*time.Millisecond || g.added != 39*time.Millisecond {
		t.Errorf("got %+v", g)
	}
}

func TestPaceOf(t *testing.T) {
	want := pace{Tokens: 7, Every: 5 * time.Millisecond}
	if got, ok := paceOf(pacedBody(want)); !ok || got != want {
		t.Errorf("got %+v, %t; want %+v", got, ok, want)
	}
	for _, body := range []string{`{}`, `{"bench_pace":`, `{"bench_pace":{}}`, `{"bench_pace":{"tokens":-1}}`, `{"bench_pace":{"tokens":99999999}}`, `{"bench_pace":7}`} {
		if got, ok := paceOf([]byte(body)); ok {
			t.Errorf("%s asks for %+v", body, got)
		}
	}
}

func TestRSS(t *testing.T) {
	proc := t.TempDir()
	write := func(text string) {
		if err := errors.Join(os.MkdirAll(filepath.Join(proc, "7"), 0o755), os.WriteFile(filepath.Join(proc, "7", "status"), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("Name:\tpdrouter\nVmRSS:\t   43436 kB\nRssAnon:\t    5284 kB\nRssFile:\t   38152 kB\n")
	if got, err := rssOf(proc, 7); err != nil || got != 5284<<10 {
		t.Errorf("got %d, %v; want 5284 KiB", got, err)
	}
	for _, text := range []string{"", "VmRSS:\t 43436 kB\n", "RssAnon:\t many kB\n"} {
		write(text)
		if got, err := rssOf(proc, 7); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
	if got, err := rssOf(proc, 8); err == nil {
		t.Errorf("a process that is not there has %d", got)
	}
}
