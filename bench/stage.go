package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// stage is the processes of one row: two fake engines, and the two targets in front of them.
type stage struct {
	fakes   [2]*child // prefill, decode
	targets [2]*child // the floor, the gateway
	config  string    // the gateway's file
}

// stage starts the processes of a row and waits until both targets split requests.
func (c Config) stage(ctx context.Context, row *Row, target, rest string) (_ *stage, err error) {
	s := &stage{}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	mode := strings.TrimPrefix(row.Connector, "vllm-nixl-")
	for i := range s.fakes {
		if s.fakes[i], err = spawn(ctx, "a fake engine", rest, true, false, c.Binary, "bench", "fake", mode); err != nil {
			return nil, err
		}
	}
	prefill, decode := s.fakes[0].address, s.fakes[1].address
	if s.targets[0], err = spawn(ctx, "the floor", target, true, false, c.Binary, "bench", "floor", prefill, decode); err != nil {
		return nil, err
	}
	free, err := freeAddresses(2)
	if err != nil {
		return nil, err
	}
	if s.config, err = writeTemp(c.gatewayText(row.Connector, free[0], free[1], prefill, decode)); err != nil {
		return nil, err
	}
	quiet := c.Log == "info" || c.Log == "debug" // a line a request: reading it all would cost the bench more than it tells
	if s.targets[1], err = spawn(ctx, "the gateway", target, false, quiet, c.Binary, "serve", "-c", s.config); err != nil {
		return nil, err
	}
	s.targets[1].address = free[0]
	return s, s.ready(ctx)
}

// ready waits until the gateway splits a request: it has learnt of its engines, and its pair is warm.
func (s *stage) ready(ctx context.Context) error {
	body := string(chatBody(256, false))
	last := errors.New("not asked")
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		if err := s.targets[1].alive(); err != nil {
			return err
		}
		answer, err := http.Post("http://"+s.targets[1].address+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			last = err
			continue
		}
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 300))
		answer.Body.Close()
		if reason := answer.Header.Get("x-pdrouter-reason"); answer.StatusCode != http.StatusOK || reason != "split" {
			last = fmt.Errorf("status %d, reason %q: %s", answer.StatusCode, reason, said)
			continue
		}
		return nil
	}
	return errors.Join(ctx.Err(), fmt.Errorf("the gateway splits no request: %w", last))
}

// stop ends the processes, targets first.
func (s *stage) stop() {
	for _, c := range []*child{s.targets[1], s.targets[0], s.fakes[0], s.fakes[1]} {
		if c != nil {
			c.stop()
		}
	}
	if s.config != "" {
		_ = os.Remove(s.config) // in the temporary folder: nobody misses it
	}
}

// measured is one round of one target.
type measured struct {
	disturbance
	micros   float64 // CPU time of the target per request
	rate     float64 // requests per second
	requests int
}

// round applies the load to a target for d and reads what it cost. Counts that do not agree make it void: every
// request must have been two legs, one of each kind, and nothing else may have reached the engines.
func (s *stage) round(ctx context.Context, which int, l load, d time.Duration) (measured, error) {
	target := s.targets[which]
	l.address = target.address
	before, err := s.read(ctx, target)
	if err != nil {
		return measured{}, err
	}
	seen, err := l.run(ctx, d)
	if err != nil {
		return measured{}, errors.Join(err, target.alive())
	}
	after, err := s.settled(ctx, target, before, int64(seen.completed))
	if err != nil {
		return measured{}, err
	}
	if err := verdict(int64(seen.completed), after.counts.minus(before.counts)); err != nil {
		return measured{}, fmt.Errorf("%s: %w", target.name, err)
	}
	return measured{
		disturbance: disturbed(before.machine, after.machine, after.own-before.own, after.at.Sub(before.at)),
		micros:      float64(after.target-before.target) / float64(seen.completed) / float64(time.Microsecond),
		rate:        float64(seen.completed) / seen.elapsed.Seconds(),
		requests:    seen.completed,
	}, nil
}

// verdict compares what the client completed with what the engines were asked.
func verdict(completed int64, asked Counts) error {
	want := Counts{Prefill: completed, Decode: completed}
	switch {
	case completed == 0:
		return fmt.Errorf("%w: no request was completed", errVoid)
	case asked != want:
		return fmt.Errorf("%w: the client completed %d requests, the engines were asked %+v", errVoid, completed, asked)
	}
	return nil
}

// reading is everything that is read before and after a round.
type reading struct {
	at          time.Time
	machine     jiffies
	own, target time.Duration // CPU time: of all processes of the bench, of the target
	counts      Counts
}

// settled reads until the engines have been asked for every completed request: with push, decode's answer may be
// with the client before prefill has read its leg.
func (s *stage) settled(ctx context.Context, target *child, before reading, completed int64) (reading, error) {
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		r, err := s.read(ctx, target)
		if err != nil || r.counts.minus(before.counts).Prefill >= completed || time.Now().After(end) {
			return r, err
		}
	}
}

func (s *stage) read(ctx context.Context, target *child) (reading, error) {
	r := reading{at: time.Now()}
	var err error
	if r.machine, err = machineJiffies("/proc"); err != nil {
		return r, err
	}
	if r.own, err = cpuOf("/proc", os.Getpid()); err != nil {
		return r, err
	}
	for _, c := range []*child{s.fakes[0], s.fakes[1], s.targets[0], s.targets[1]} {
		used, err := c.cpu()
		if err != nil {
			return r, errors.Join(err, c.alive())
		}
		if c == target {
			r.target = used
		}
		r.own += used
	}
	for _, f := range s.fakes {
		c, err := countsOf(ctx, f.address)
		if err != nil {
			return r, err
		}
		r.counts = r.counts.plus(c)
	}
	return r, nil
}

// countsOf asks a fake what it was asked.
func countsOf(ctx context.Context, address string) (Counts, error) {
	var c Counts
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+countsPath, nil)
	if err != nil {
		return c, err
	}
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return c, fmt.Errorf("bench: %w", err)
	}
	defer answer.Body.Close()
	return c, json.NewDecoder(answer.Body).Decode(&c)
}

// freeAddresses returns n loopback addresses nobody listens on.
func freeAddresses(n int) ([]string, error) {
	addresses := make([]string, n)
	for i := range addresses {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		defer ln.Close()
		addresses[i] = ln.Addr().String()
	}
	return addresses, nil
}
