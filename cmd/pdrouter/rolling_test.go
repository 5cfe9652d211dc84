package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pdrouter/internal/demo"
	"pdrouter/internal/proc"
)

// rolling is gateways and engines as processes of their own, under load.
type rolling struct {
	t       *testing.T
	dir     string
	engines []string // their addresses
	body    string   // of a whole answer
	want    string   // the one right text

	sent, failed atomic.Int64
}

func newRolling(t *testing.T, engines int) *rolling {
	t.Helper()
	s := &rolling{t: t, dir: t.TempDir(), body: rollingBody}
	var err error
	if s.engines, err = demo.FreeAddresses(engines); err != nil {
		t.Fatal(err)
	}
	for i, address := range s.engines {
		s.start(fmt.Sprintf("e%d", i), "mock-engine", "--name", fmt.Sprintf("e%d", i), "--role", "both", "--listen", address)
		until(t, "the engine answers", func() bool {
			resp, err := http.Get("http://" + address + "/health")
			if err == nil {
				resp.Body.Close()
			}
			return err == nil
		})
	}
	if _, s.want, err = complete("http://"+s.engines[0], rollingBody); err != nil || s.want == "" {
		t.Fatalf("an engine alone: %q, %v", s.want, err)
	}
	return s
}

const rollingBody = `{"model":"reference","prompt":"one two three four five six","max_tokens":6}`

func (s *rolling) start(name string, args ...string) *proc.Process {
	s.t.Helper()
	p, err := proc.Start(s.dir, name, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = p.Cmd.Process.Kill(); <-p.Done })
	return p
}

// ready waits until the gateway with these operations routes says that it is ready.
func (s *rolling) ready(operations string) {
	s.t.Helper()
	until(s.t, "the gateway is ready", func() bool {
		resp, err := http.Get("http://" + operations + "/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// load has clients ask the gateways in turn until ctx ends, whole answers and streams. A client asks the next one only if
// it was refused the connection, so that nothing was sent.
func (s *rolling) load(ctx context.Context, clients int, gateways ...string) *sync.WaitGroup {
	var running sync.WaitGroup
	for c := range clients {
		running.Go(func() {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			for n := c; ctx.Err() == nil; n++ {
				s.sent.Add(1)
				var err error
				for try := range 2 * len(gateways) {
					err = s.ask(&http.Client{Transport: transport}, gateways[(n+try)%len(gateways)], c%2 == 0)
					if !errors.Is(err, syscall.ECONNREFUSED) {
						break
					}
				}
				if err != nil && s.failed.Add(1) < 5 {
					s.t.Errorf("request: %v", err)
				}
			}
		})
	}
	return &running
}

func (s *rolling) ask(client *http.Client, gateway string, stream bool) error {
	body := s.body
	if stream {
		body = strings.TrimSuffix(body, "}") + `,"stream":true}`
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+gateway+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.GetBody = nil // the transport must not send it again by itself
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("after %q: %w", b, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %s", resp.StatusCode, b)
	}
	got := textOf(b, stream)
	if got != s.want || stream && !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
		return fmt.Errorf("got %q in %q; want %q", got, b, s.want)
	}
	return nil
}

// textOf joins the texts of an answer or a stream.
func textOf(b []byte, stream bool) string {
	lines := []string{string(b)}
	if stream {
		lines = strings.Split(string(b), "\n")
	}
	var all strings.Builder
	for _, line := range lines {
		all.WriteString(firstText(strings.TrimPrefix(line, "data: ")))
	}
	return all.String()
}

// firstText is the text of the first choice, "" if there is none.
func firstText(b string) string {
	var answer struct{ Choices []struct{ Text string } }
	if json.Unmarshal([]byte(b), &answer) != nil || len(answer.Choices) == 0 {
		return ""
	}
	return answer.Choices[0].Text
}

// TestFault66RollingRestart: gateways that are restarted one after the other lose no request of clients that never send one
// twice.
func TestFault66RollingRestart(t *testing.T) {
	t.Parallel() // it waits for processes more than it works
	s := newRolling(t, 2)
	ports, err := demo.FreeAddresses(4)
	if err != nil {
		t.Fatal(err)
	}
	run := func(i int) *proc.Process {
		file := filepath.Join(s.dir, fmt.Sprintf("g%d.yaml", i))
		text := fmt.Sprintf("listen: {clients: %q, operations: %q}\ntimeouts: {pre_stop_delay: 300ms}\nlog: {format: text, level: warn}\n", ports[i], ports[2+i]) +
			fmt.Sprintf("models: [{name: reference, engines: [{name: e0, url: \"http://%s\"}, {name: e1, url: \"http://%s\"}]}]\n", s.engines[0], s.engines[1])
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p := s.start(fmt.Sprintf("gateway-%d", i), "serve", "-c", file)
		s.ready(ports[2+i])
		return p
	}
	gateways := []*proc.Process{run(0), run(1)}
	ctx, stop := context.WithCancel(t.Context())
	running := s.load(ctx, 6, ports[0], ports[1])
	for range 3 {
		for i := range gateways {
			n := s.sent.Load()
			until(t, "requests come and go", func() bool { return s.sent.Load() > n+20 })
			if err := gateways[i].Cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			until(t, "it says that it is not ready, while it serves", func() bool {
				resp, err := http.Get("http://" + ports[2+i] + "/ready")
				if err == nil {
					resp.Body.Close()
				}
				return err != nil || resp.StatusCode == http.StatusServiceUnavailable
			})
			select {
			case <-gateways[i].Done:
			case <-time.After(time.Minute):
				t.Fatal("it did not end")
			}
			if err := gateways[i].Err; err != nil {
				t.Fatalf("it ended with %v\n%s", err, gateways[i].Tail(10))
			}
			gateways[i] = run(i)
		}
	}
	stop()
	running.Wait()
	if failed := s.failed.Load(); failed != 0 {
		t.Errorf("%d of %d requests failed", failed, s.sent.Load())
	}
	t.Logf("%d requests, 6 restarts", s.sent.Load())
}

// TestReloadsLoseNothing has a gateway go to and fro between two configurations while clients ask it.
func TestReloadsLoseNothing(t *testing.T) {
	s := newRolling(t, 3)
	ports, err := demo.FreeAddresses(2)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.dir, "gateway.yaml")
	texts := [2]string{
		`models: [{name: reference, engines: [{name: e0, url: "http://%[1]s"}, {name: e1, url: "http://%[2]s"}]}]
policy: {default: {decode: round_robin}}
`,
		`models: [{name: reference, engines: [{name: e1, url: "http://%[2]s", drain: true}, {name: e2, url: "http://%[3]s"}]}]
policy: {default: {decode: least_load}}
timeouts: {health: 500ms, request_total: 5m, write: 10s}
limits: {body: 100000}
strict: true
`,
	}
	write := func(i int) {
		text := fmt.Sprintf("listen: {clients: %q, operations: %q}\nlog: {level: warn}\n", ports[0], ports[1]) +
			fmt.Sprintf(texts[i%2]+"# %[4]d\n", s.engines[0], s.engines[1], s.engines[2], i)
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(0)
	p := s.start("gateway", "serve", "-c", file)
	s.ready(ports[1])
	ctx, stop := context.WithCancel(t.Context())
	running := s.load(ctx, 4, ports[0])
	for i := range 200 {
		write(i + 1)
		resp, err := http.Post("http://"+ports[1]+"/config/reload", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("reload %d: %d %s", i, resp.StatusCode, b)
		}
		n := s.sent.Load()
		until(t, "requests come and go", func() bool { return s.sent.Load() > n })
	}
	stop()
	running.Wait()
	if failed := s.failed.Load(); failed != 0 {
		t.Errorf("%d of %d requests failed\n%s", failed, s.sent.Load(), p.Tail(20))
	}
	t.Logf("%d requests, 200 reloads", s.sent.Load())
}
