package fault

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
)

// Suite measures what engines that fail and clients that leave cost.
func Suite() harness.Suite {
	return harness.Suite{Name: "fault/cost", Brief: "a prefill engine that fails at once while decode waits; clients that leave their streams", Run: measureFault}
}

func measureFault(ctx context.Context, r *harness.Run) error {
	s, err := newFaultStage()
	if err != nil {
		return err
	}
	defer s.close()
	gateway, err := s.gateway(ctx, r.Config)
	if err != nil {
		return err
	}
	defer gateway.Stop()
	f := &faultRun{faultStage: s, gateway: gateway}
	for _, kind := range []faultKind{faultRefused, faultReset, fault500} {
		if err := failing(ctx, r, f, kind); err != nil {
			return err
		}
	}
	err = r.Compare(ctx, harness.Comparison{
		Name: "cancelled stream", Metrics: []harness.Metric{{What: "CPU", Unit: "µs"}},
		Systems: []harness.System{{Of: report.Us, Round: f.cancelled}},
	})
	if err != nil || f.ended == 0 {
		return err
	}
	if f.open, f.held, err = f.settle(ctx, 0, 0, 10*time.Second); err != nil {
		return err
	}
	for _, left := range []struct {
		what string
		n    int
	}{{"blocks", f.held}, {"requests", f.open}} {
		add(r, report.Row{Name: "left behind all of these", What: left.what, Unit: "requests", Done: f.ended, Ours: report.Figure{Of: report.Us, Rounds: []float64{float64(left.n)}}}, report.Goal{})
	}
	return nil
}

// failing measures one kind of failure, and sums up the requests of all rounds.
func failing(ctx context.Context, r *harness.Run, f *faultRun, kind faultKind) error {
	name := "prefill fails: " + kind.String()
	var all [2][]time.Duration
	var freed []float64 // by round
	one := func(i int, of string, kind faultKind) harness.System {
		trials := 2 // of the first round, which warms up
		return harness.System{Of: of, Round: func(ctx context.Context, _ time.Duration) (harness.Sample, error) {
			got, took, clear, err := f.round(ctx, kind, trials)
			counts := trials == faultTrials
			trials = faultTrials
			if err == nil && counts && got.Calm(r.Config) {
				all[i] = append(all[i], took...)
				if i == 0 {
					freed = append(freed, clear)
				}
			}
			return got, err
		}}
	}
	within := []report.Goal{{Plus: 50}}
	err := r.Compare(ctx, harness.Comparison{
		Name: name,
		Metrics: []harness.Metric{{What: "until answered", Unit: "ms", Goals: within}, {What: "slowest of a round", Unit: "ms"}, {What: "answered 200", Unit: "%"},
			{What: "in use again", Unit: "ms"}},
		Systems: []harness.System{one(0, report.Us, kind), one(1, "no fault", faultNone)},
	})
	if err != nil || len(all[0]) == 0 {
		return err
	}
	add(r, report.Row{Name: name, What: "nothing left", Unit: "ms", Done: len(all[0]), Ours: report.Figure{Of: report.Us, Rounds: freed}})
	if len(all[0]) < harness.TailOf {
		r.Report.Notes = append(r.Report.Notes, fmt.Sprintf("%s: no 99th percentile of %d requests.", name, len(all[0])))
		return nil
	}
	add(r, report.Row{Name: name, What: "until answered, p99", Unit: "ms", Done: len(all[0]) + len(all[1]),
		Ours:   report.Figure{Of: report.Us, Rounds: []float64{report.Millis(load.QuantilesOf(all[0]).P99)}},
		Beside: []report.Figure{{Of: "no fault", Rounds: []float64{report.Millis(load.QuantilesOf(all[1]).P99)}}}}, within...)
	return nil
}

// add sums a row up and adds it.
func add(r *harness.Run, row report.Row, goals ...report.Goal) {
	row.Sum(goals...)
	r.Report.Rows = append(r.Report.Rows, row)
}

// gateway starts one in front of the engines and waits until each prefill engine has served with decode.
func (s *faultStage) gateway(ctx context.Context, cfg harness.Config) (*harness.Child, error) {
	g := &harness.Stage{Cfg: cfg, Connector: "vllm-nixl-push", Prefill: []*harness.Child{{Address: s.bad.address}, {Address: s.good.address}}, Decode: []*harness.Child{{Address: s.decode.address}}}
	c, err := harness.StartGateway(ctx, g)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, _, err = askOnce(ctx, c.Address, false)
		bad, good := s.bad.served.Load(), s.good.served.Load()
		if err == nil && bad > 2 && good > 2 {
			return c, nil
		}
		if c.Alive() != nil || time.Now().After(end) || ctx.Err() != nil {
			c.Stop()
			return nil, fmt.Errorf("bench: the gateway splits no request: %w: %s", err, c.Said)
		}
	}
}

// askOnce asks the gateway for an answer, whatever it is, and returns its status and how long it took.
func askOnce(ctx context.Context, address string, stream bool) (int, time.Duration, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	answer, err := harness.Post(ctx, "http://"+address+"/v1/chat/completions", fake.ChatBody(1<<10, stream))
	if err != nil {
		return 0, 0, err
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
	gateway    *harness.Child
	held, open int // transfers and requests that were left and are not waited for again
	ended      int // requests behind which that was looked for
}

// leaves waits until nothing is left of a request, and notes what is.
func (f *faultRun) leaves(ctx context.Context) (err error) {
	f.ended++
	f.open, f.held, err = f.settle(ctx, f.open, f.held, 10*time.Second)
	return err
}

const (
	faultTrials  = 20              // requests of a round that meet the fault
	faultLongest = 6 * time.Second // for which a round goes on to make them
	faultBetween = 8               // others between two of them
)

// round has so many requests meet a fault, or as many as there is time for, one after the other, each from a fleet that is well, and returns how
// long each took, and after how many ms nothing was left of the middle one.
func (f *faultRun) round(ctx context.Context, kind faultKind, trials int) (got harness.Sample, took []time.Duration, clear float64, err error) {
	var again, free []time.Duration
	answered := 0
	watch := &harness.Stage{Running: []*harness.Child{f.gateway}}
	before, err := watch.Read(ctx, f.gateway)
	if err != nil {
		return got, nil, 0, err
	}
	for end := time.Now().Add(faultLongest); len(took) < trials && (len(took) == 0 || time.Now().Before(end)); {
		status, d, err := f.trial(ctx, kind)
		if err != nil {
			return got, nil, 0, err
		}
		took = append(took, d)
		if status == http.StatusOK {
			answered++
		}
		start := time.Now()
		if err := f.well(ctx); err != nil {
			return got, nil, 0, err
		}
		again = append(again, time.Since(start))
		if err := f.leaves(ctx); err != nil {
			return got, nil, 0, err
		}
		free = append(free, time.Since(start)-again[len(again)-1])
		if err := f.others(ctx); err != nil {
			return got, nil, 0, err
		}
	}
	after, err := watch.Read(ctx, f.gateway)
	if err != nil {
		return got, nil, 0, err
	}
	got.Done, got.Disturbance = len(took), after.Since(before.Use)
	got.Figures = []float64{report.Millis(load.QuantilesOf(took).P50), report.Millis(slices.Max(took)), 100 * float64(answered) / float64(len(took)), report.Millis(load.QuantilesOf(again).P50)}
	return got, took, report.Millis(load.QuantilesOf(free).P50), nil
}

// others are the requests between two that meet the fault.
func (f *faultRun) others(ctx context.Context) error {
	for range faultBetween {
		if status, _, err := askOnce(ctx, f.gateway.Address, false); err != nil || status != http.StatusOK {
			return fmt.Errorf("bench: between two faults: status %d: %w", status, err)
		}
	}
	return nil
}

// trial returns how a request ended that has met the fault, and after how long. Where there is none the first will do. A gateway that
// was the first to see the fault, by a health check, asks the engine nothing: then the fleet is to be well once more.
func (f *faultRun) trial(ctx context.Context, kind faultKind) (status int, took time.Duration, err error) {
	for range 5 {
		if err := f.bad.become(kind); err != nil {
			return 0, 0, err
		}
		met := kind == faultNone
		for range 20 {
			bad, decode := f.bad.served.Load(), f.decode.served.Load()
			if status, took, err = askOnce(ctx, f.gateway.Address, false); err != nil {
				return 0, 0, err
			}
			// a port that is closed counts nothing, but decode is asked twice
			if met = met || f.bad.served.Load() > bad || f.decode.served.Load() > decode+1 || status != http.StatusOK; met {
				break
			}
		}
		if err := f.bad.become(faultNone); err != nil || met {
			return status, took, err
		}
		if err := f.well(ctx); err != nil {
			return 0, 0, err
		}
	}
	return 0, 0, fmt.Errorf("%w: five times the engine that fails was not asked in 20 requests", load.ErrVoid)
}

// well waits until the engine that has failed serves again.
func (f *faultRun) well(ctx context.Context) error {
	served := f.bad.served.Load()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if status, _, err := askOnce(ctx, f.gateway.Address, false); err != nil || status != http.StatusOK {
			return fmt.Errorf("bench: behind a fault: status %d: %w", status, err)
		}
		if f.bad.served.Load() > served {
			return nil
		}
	}
	return fmt.Errorf("%w: an engine that is well again gets no requests", load.ErrVoid)
}

// cancelled opens streams for d, one after the other, whose client leaves behind the first token.
func (f *faultRun) cancelled(ctx context.Context, d time.Duration) (harness.Sample, error) {
	watch := &harness.Stage{Running: []*harness.Child{f.gateway}}
	before, err := watch.Read(ctx, f.gateway)
	if err != nil {
		return harness.Sample{}, err
	}
	got := harness.Sample{}
	for end := time.Now().Add(d); time.Now().Before(end) || got.Done == 0; got.Done++ {
		status, _, err := askOnce(ctx, f.gateway.Address, true)
		if err != nil || status != http.StatusOK {
			return got, fmt.Errorf("bench: a stream begins with status %d: %w", status, err)
		}
	}
	if err := f.leaves(ctx); err != nil {
		return got, err
	}
	after, err := watch.Read(ctx, f.gateway)
	if err != nil {
		return got, err
	}
	got.Disturbance = after.Since(before.Use)
	got.Figures = []float64{float64(after.Target-before.Target) / float64(got.Done) / float64(time.Microsecond)}
	return got, nil
}
