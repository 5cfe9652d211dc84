package router

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/report"
)

// TestStreamOfHours has an engine say a token every 30 s for five hours, over every connector: all of it arrives, no deadline cuts it,
// and whatever stands in between sees a byte at least every 15 s, which are comments.
func TestStreamOfHours(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull, connector.NameKVPlane, connector.NameSGLang} {
		t.Run(connectorName, func(t *testing.T) {
			virtual(t, func(t *testing.T, n *memNet) { streamOfHours(t, n, connectorName) })
		})
	}
}

func streamOfHours(t *testing.T, n *memNet, connectorName string) {
	const every, count = 30 * time.Second, 5*60*2 + 1
	s, parts := newIn(t, n, connectorName, 1, 1)
	s.cfg.Timeouts.Health = time.Hour
	g := startIn(t, n, s.cfg, parts)
	if connectorName != connector.NameNone && connectorName != connector.NameSGLang {
		g.warmed()
	}
	s.d[0].answers(func(h *habit) { h.tokens, h.parrot = count, false })
	s.setFaults(map[string][]fault{"decode-0": {{Do: doLateToken, N: int(every.Milliseconds())}}})
	req, err := http.NewRequest(http.MethodPost, g.url+pathCompletions, strings.NewReader(strings.Replace(streamBody, `"max_tokens":16`, `"max_tokens":9999`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := g.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := clientReply{Status: resp.StatusCode, Header: resp.Header}
	begun, last, silent := time.Now(), time.Now(), time.Duration(0)
	var body strings.Builder
	for buf := make([]byte, 4<<10); r.Err == nil; {
		var m int
		m, r.Err = resp.Body.Read(buf)
		body.Write(buf[:m])
		silent, last = max(silent, time.Since(last)), time.Now()
	}
	if r.Body = body.String(); errors.Is(r.Err, io.EOF) {
		r.Err = nil
	}
	if got, whole := text(t, r); got != tokens(count) || !whole {
		t.Errorf("%d bytes of %d, whole %v, %v: …%s", len(got), len(tokens(count)), whole, r.Err, r.Body[max(0, len(r.Body)-300):])
	}
	if took := time.Since(begun); took != (count-1)*every {
		t.Errorf("it took %v; want five hours", took)
	}
	if limit := *g.r.Timeouts().KeepAlive; silent > limit || limit >= every {
		t.Errorf("it was silent for %v; want at most %v", silent, limit)
	}
	if n := strings.Count(r.Body, KeepAliveEvent); n < count-1 || n > 5*count {
		t.Errorf("%d comments", n)
	}
	if sum := g.last(1); sum.Outcome != report.Completed || sum.Attempts != 1 || connectorName != connector.NameNone && sum.Prefill == "" {
		t.Errorf("summary %+v", sum)
	}
}

// TestStreamSilenceIsBounded has an engine say nothing behind its first tokens: the stream lives for as long as two events may be
// apart, to the millisecond, and then ends with an error event and a cut.
func TestStreamSilenceIsBounded(t *testing.T) {
	virtual(t, func(t *testing.T, n *memNet) {
		s, parts := newIn(t, n, connector.NameNone, 0, 1)
		s.setFaults(map[string][]fault{"decode-0": {{Do: doLateToken, N: int(time.Hour.Milliseconds())}}})
		g := startIn(t, n, s.cfg, parts)
		begun := time.Now()
		r := g.post(pathCompletions, streamBody)
		if took := time.Since(begun); took != g.r.Timeouts().Stream {
			t.Errorf("it took %v; want %v", took, g.r.Timeouts().Stream)
		}
		if r.Err == nil || strings.Contains(r.Body, "[DONE]") || strings.Count(r.Body, `{"error"`) != 1 || !strings.Contains(r.Body, KeepAliveEvent) {
			t.Errorf("end %v, body %q", r.Err, r.Body)
		}
	})
}
