package planevllm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/report"
	"pdrouter/bench/suites/stock"
)

// Suite measures pdrouter's plane inside vLLM beside vLLM's own connector.
func Suite() harness.Suite {
	return harness.Suite{Name: "plane/vllm", Brief: "vLLM with pdrouter's plane beside vLLM with NixlPushConnector: hand-off, CPU time, rest, first request", Run: measurePlaneVLLM}
}

// The sizes of the suite.
const (
	vllmStarts = 2  // of each pair
	vllmLater  = 10 // requests behind the first one
)

// vllmLengths are the prompts' lengths in tokens: whole blocks of 32, and one token.
var vllmLengths = []int{513, 1825}

// The rows that are not one for each length.
const (
	rowFresh = "rest, not used yet"
	rowRest  = "rest"
	rowFirst = "first request"
)

func rowHandover(tokens int) string { return fmt.Sprintf("hand-off, %d tokens", tokens) }
func rowRequest(tokens int) string  { return fmt.Sprintf("request, %d tokens", tokens) }

// planeVLLM is a run of the suite: both pairs, pdrouter's first.
type planeVLLM struct {
	*harness.Run
	pairs [2]*vllmPair
	asked int // prompts
	first [2]struct{ first, later []float64 }
}

// measurePlaneVLLM starts both pairs several times, and measures most with those that were started last.
func measurePlaneVLLM(ctx context.Context, r *harness.Run) (err error) {
	if missing := missingForVLLM(r.Config); missing != "" {
		r.Report.Notes = append(r.Report.Notes, missing)
		return nil
	}
	starts, wanted := vllmStarts, r.Wants(rowFirst)
	if !wanted {
		starts = 1
	}
	for _, name := range []string{rowFresh, rowRest} {
		wanted = wanted || r.Wants(name)
	}
	for _, n := range vllmLengths {
		wanted = wanted || r.Wants(rowHandover(n)) || r.Wants(rowRequest(n))
	}
	if !wanted {
		return nil
	}
	dir, err := os.MkdirTemp("", "pdrouter-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	python, err := stock.StockPython(r.Config)
	if err != nil {
		return err
	}
	model := filepath.Join(dir, "model")
	if err := stock.MakeModel(ctx, python, model); err != nil {
		return err
	}
	s := &planeVLLM{Run: r}
	r.Report.Settings = fmt.Sprintf("%d starts; %d hand-offs, %d rounds of requests and %d of rest of each, in turns", starts, max(r.Rounds, stock.StockRounds), r.Rounds, s.few())
	for i := range starts {
		if err := s.started(ctx, i == starts-1, python, model); err != nil {
			return err
		}
	}
	if r.Wants(rowFirst) {
		s.firstRow()
	}
	return nil
}

// started starts both pairs, has a first request of each, and with the last start measures the rest.
func (s *planeVLLM) started(ctx context.Context, last bool, python, model string) (err error) {
	fmt.Fprintln(s.Out, "  four engines of vLLM start, which takes a minute or some")
	for i, of := range []string{report.Us, nixlPush} {
		p, err := newVLLMPair(s.Config, of, python, model)
		s.pairs[i] = p
		defer p.close()
		if err != nil {
			return err
		}
	}
	for _, p := range s.pairs {
		if err := p.begin(ctx); err != nil {
			return err
		}
	}
	for _, p := range s.pairs {
		if err := p.up(ctx, s.Out); err != nil {
			return err
		}
	}
	if err := s.pairs[0].ready(ctx); err != nil {
		return err
	}
	if last && s.Wants(rowFresh) {
		if err := s.comparisonOf(ctx, s.rest(rowFresh), s.few(), s.Round); err != nil {
			return err
		}
	}
	if err := s.firsts(ctx); err != nil {
		return err
	}
	if !last {
		return nil
	}
	return s.lasting(ctx)
}

// lasting is what is measured once both pairs are used.
func (s *planeVLLM) lasting(ctx context.Context) error {
	if err := s.awake(ctx, 1); err != nil {
		return err
	}
	if err := s.pairs[1].behind(ctx); err != nil {
		return err
	}
	for _, n := range vllmLengths {
		if err := s.handovers(ctx, n); err != nil {
			return err
		}
	}
	for _, n := range vllmLengths {
		if err := s.requests(ctx, n); err != nil {
			return err
		}
	}
	return s.comparisonOf(ctx, s.rest(rowRest), s.few(), s.Round)
}

// few is the number of rounds of what changes little.
func (s *planeVLLM) few() int { return max(1, s.Rounds/2) }

// awake has one pair go on and the other one stop, waits until its gateway, where it has one, has the pair, and notes what decode has
// counted by then.
func (s *planeVLLM) awake(ctx context.Context, i int) error {
	p := s.pairs[i]
	err := errors.Join(s.pairs[1-i].stop(true), p.stop(false))
	if err == nil && p.Running[0] != nil {
		err = p.ready(ctx)
	}
	if err == nil {
		p.sources, err = sourcesOf(ctx, p.At[1])
	}
	return err
}

// comparisonOf measures a comparison with so many rounds. A round counts only if nobody else used the machine.
func (s *planeVLLM) comparisonOf(ctx context.Context, c harness.Comparison, rounds int, round time.Duration) error {
	cfg := s.Config
	cfg.Rounds, cfg.Round = rounds, round
	return (&harness.Run{Config: cfg, Report: s.Report, Out: s.Out}).Compare(ctx, c)
}

// nextPrompt is a prompt that nobody has seen.
func (s *planeVLLM) nextPrompt(tokens int) string {
	s.asked++
	return vllmPrompt(s.asked, tokens)
}
