package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

const faultAbout = "Connector vllm-nixl-push, two prefill engines and one for decode, which waits for the blocks of its request for ever if nobody writes them. One prefill engine fails at once: its port is closed, it resets the connection, or it answers 500; the other one does what it should. The figure is the time of a whole request whose first prefill leg failed so, until the client has an answer, whether after another attempt or an error; beside it a request of the same run that nothing happened to. **blocks left** are hand-overs whose blocks decode holds ten seconds later at the most, and **requests left** those that an engine still has.\n\n" +
	"**cancelled stream**: CPU of the gateway for a stream whose client leaves behind the first token, connection and all, and what is left of it.\n"

// faultSuite measures what engines that fail and clients that leave cost.
func faultSuite() Suite {
	return Suite{Name: "fault/cost", Brief: "a prefill engine that fails at once while decode hangs; clients that leave their streams", About: faultAbout, run: measureFault}
}

func measureFault(ctx context.Context, r *Run) error {
	s, err := newFaultStage()
	if err != nil {
		return err
	}
	defer s.close()
	gateway, err := s.gateway(ctx, r.Config)
	if err != nil {
		return err
	}
	defer gateway.stop()
	f := &faultRun{faultStage: s, gateway: gateway}
	for _, kind := range []faultKind{faultRefused, faultReset, fault500} {
		err := r.contest(ctx, contest{
			name:    "prefill fails: " + kind.String(),
			metrics: []metric{{what: "until answered", unit: "ms", goals: []Goal{{Plus: 50}}}, {what: "slowest of 5", unit: "ms"}, {what: "answered 200", unit: "of 5"}},
			contenders: []contender{
				{of: us, round: func(ctx context.Context, _ time.Duration) (sample, error) { return f.round(ctx, kind) }},
				{of: "no fault", round: func(ctx context.Context, _ time.Duration) (sample, error) { return f.round(ctx, faultNone) }},
			},
		})
		if err != nil {
			return err
		}
	}
	err = r.contest(ctx, contest{
		name: "cancelled stream", metrics: []metric{{what: "CPU", unit: "µs"}},
		contenders: []contender{{of: us, round: f.cancelled}},
	})
	if err != nil || len(f.held) == 0 {
		return err
	}
	for _, left := range []struct {
		what   string
		rounds []float64
	}{{"blocks", f.held}, {"requests", f.open}} {
		row := Row{Name: "left behind all of these", What: left.what, Unit: "requests", Ours: Figure{Of: us, Rounds: left.rounds}}
		row.sum(Goal{})
		r.report.Rows = append(r.report.Rows, row)
	}
	return nil
}

// gateway starts one in front of the engines and waits until each prefill engine has served with decode.
func (s *faultStage) gateway(ctx context.Context, cfg Config) (*child, error) {
	g := &stage{cfg: cfg, connector: "vllm-nixl-push", prefill: []*child{{address: s.bad.address}, {address: s.good.address}}, decode: []*child{{address: s.decode.address}}}
	c, err := startGateway(ctx, g)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, _, err = post(ctx, c.address, false)
		bad, good := s.bad.served.Load(), s.good.served.Load()
		if err == nil && bad > 2 && good > 2 {
			return c, nil
		}
		if c.alive() != nil || time.Now().After(end) || ctx.Err() != nil {
			c.stop()
			return nil, fmt.Errorf("bench: the gateway splits no request: %w: %s", err, c.said)
		}
	}
}

// post asks the gateway for an answer, whatever it is, and returns its status and how long it took.
func post(ctx context.Context, address string, stream bool) (int, time.Duration, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/chat/completions", bytes.NewReader(chatBody(1<<10, stream)))
	if err != nil {
		return 0, 0, err
	}
	q.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, 0, fmt.Errorf("bench: %w", err)
	}
	defer answer.Body.Close()
	if stream { // until its first token: then the client is gone
		one := make([]byte, 64)
		_, err = io.ReadAtLeast(answer.Body, one, 1)
	} else {
		_, err = io.Copy(io.Discard, answer.Body)
	}
	return answer.StatusCode, time.Since(began), err
}

// faultRun is the stage with the gateway in front of it.
type faultRun struct {
	*faultStage
	gateway    *child
	held, open []float64 // by round: what was left
}

// leaves notes what is left behind a round.
func (f *faultRun) leaves(ctx context.Context) error {
	open, held, err := f.settle(ctx, 10*time.Second)
	f.open, f.held = append(f.open, float64(open)), append(f.held, float64(held))
	return err
}

// faultTrials is how many requests of a round meet the fault.
const faultTrials = 5

// round has requests meet a fault, one after the other, each from a fleet that is well.
func (f *faultRun) round(ctx context.Context, kind faultKind) (sample, error) {
	var took []float64
	answered := 0
	got := sample{done: faultTrials}
	watch := &stage{running: []*child{f.gateway}}
	before, err := watch.read(ctx, f.gateway)
	if err != nil {
		return got, err
	}
	for range faultTrials {
		status, d, err := f.trial(ctx, kind)
		if err != nil {
			return got, err
		}
		took = append(took, float64(d)/float64(time.Millisecond))
		if status == http.StatusOK {
			answered++
		}
		if err := f.well(ctx); err != nil {
			return got, err
		}
		if err := f.leaves(ctx); err != nil {
			return got, err
		}
	}
	after, err := watch.read(ctx, f.gateway)
	if err != nil {
		return got, err
	}
	got.disturbance = after.since(before.use)
	all := spread(took)
	got.figures = []float64{all.Median, all.Max, float64(answered)}
	return got, nil
}

// trial returns how a request ended that has met the fault, and after how long. Where there is none the first will do.
func (f *faultRun) trial(ctx context.Context, kind faultKind) (int, time.Duration, error) {
	if err := f.bad.become(kind); err != nil {
		return 0, 0, err
	}
	for range 20 {
		bad, decode := f.bad.served.Load(), f.decode.served.Load()
		status, took, err := post(ctx, f.gateway.address, false)
		if err != nil {
			return 0, 0, err
		}
		hit := f.bad.served.Load() > bad || f.decode.served.Load() > decode+1 || status != http.StatusOK // a port that is closed counts nothing, but decode is asked twice
		if hit || kind == faultNone {
			return status, took, f.bad.become(faultNone)
		}
	}
	return 0, 0, fmt.Errorf("%w: in 20 requests the engine that fails was not asked", errVoid)
}

// well waits until the engine that has failed serves again.
func (f *faultRun) well(ctx context.Context) error {
	served := f.bad.served.Load()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if status, _, err := post(ctx, f.gateway.address, false); err != nil || status != http.StatusOK {
			return fmt.Errorf("bench: behind a fault: status %d: %w", status, err)
		}
		if f.bad.served.Load() > served {
			return nil
		}
	}
	return fmt.Errorf("%w: an engine that is well again gets no requests", errVoid)
}

// cancelled opens streams for d, one after the other, whose client leaves behind the first token.
func (f *faultRun) cancelled(ctx context.Context, d time.Duration) (sample, error) {
	watch := &stage{running: []*child{f.gateway}}
	before, err := watch.read(ctx, f.gateway)
	if err != nil {
		return sample{}, err
	}
	got := sample{}
	for end := time.Now().Add(d); time.Now().Before(end) || got.done == 0; got.done++ {
		status, _, err := post(ctx, f.gateway.address, true)
		if err != nil || status != http.StatusOK {
			return got, fmt.Errorf("bench: a stream begins with status %d: %w", status, err)
		}
	}
	if err := f.leaves(ctx); err != nil {
		return got, err
	}
	after, err := watch.read(ctx, f.gateway)
	if err != nil {
		return got, err
	}
	got.disturbance = after.since(before.use)
	got.figures = []float64{float64(after.target-before.target) / float64(got.done) / float64(time.Microsecond)}
	return got, nil
}
