package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// planeVLLMSuite measures pdrouter's plane inside vLLM beside vLLM's own connector.
func planeVLLMSuite() Suite {
	return Suite{Name: "plane/vllm", Brief: "vLLM with pdrouter's plane beside vLLM with NixlPushConnector: hand-over, CPU time, rest, first request", run: measurePlaneVLLM}
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

func rowHandover(tokens int) string { return fmt.Sprintf("hand-over, %d tokens", tokens) }
func rowRequest(tokens int) string  { return fmt.Sprintf("request, %d tokens", tokens) }

// planeVLLM is a run of the suite: both pairs, pdrouter's first.
type planeVLLM struct {
	*Run
	pairs [2]*vllmPair
	asked int // prompts
	first [2]struct{ first, later []float64 }
}

// measurePlaneVLLM starts both pairs several times, and measures most with those that were started last.
func measurePlaneVLLM(ctx context.Context, r *Run) (err error) {
	if missing := missingForVLLM(r.Config); missing != "" {
		r.report.Notes = append(r.report.Notes, missing)
		return nil
	}
	starts, wanted := vllmStarts, r.wants(rowFirst)
	if !wanted {
		starts = 1
	}
	for _, name := range []string{rowFresh, rowRest} {
		wanted = wanted || r.wants(name)
	}
	for _, n := range vllmLengths {
		wanted = wanted || r.wants(rowHandover(n)) || r.wants(rowRequest(n))
	}
	if !wanted {
		return nil
	}
	dir, err := os.MkdirTemp("", "pdrouter-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	python, err := r.stockPython()
	if err != nil {
		return err
	}
	model := filepath.Join(dir, "model")
	if err := makeModel(ctx, python, model); err != nil {
		return err
	}
	s := &planeVLLM{Run: r}
	r.report.Settings = fmt.Sprintf("%d starts; %d hand-overs, %d rounds of requests and %d of rest of each, in turns", starts, max(r.Rounds, stockRounds), r.Rounds, s.few())
	for i := range starts {
		if err := s.started(ctx, i == starts-1, python, model); err != nil {
			return err
		}
	}
	if r.wants(rowFirst) {
		s.firstRow()
	}
	return nil
}

// started starts both pairs, has a first request of each, and with the last start measures the rest.
func (s *planeVLLM) started(ctx context.Context, last bool, python, model string) (err error) {
	fmt.Fprintln(s.out, "  four engines of vLLM start, which takes a minute or some")
	for i, of := range []string{us, nixlPush} {
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
		if err := p.up(ctx, s.out); err != nil {
			return err
		}
	}
	if err := s.pairs[0].ready(ctx); err != nil {
		return err
	}
	if last && s.wants(rowFresh) {
		if err := s.contestOf(ctx, s.rest(rowFresh), s.few(), s.Round); err != nil {
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
	return s.contestOf(ctx, s.rest(rowRest), s.few(), s.Round)
}

// few is the number of rounds of what changes little.
func (s *planeVLLM) few() int { return max(1, s.Rounds/2) }

// awake has one pair go on and the other one stop, waits until its gateway, where it has one, has the pair, and notes what decode has
// counted by then.
func (s *planeVLLM) awake(ctx context.Context, i int) error {
	p := s.pairs[i]
	err := errors.Join(s.pairs[1-i].stop(true), p.stop(false))
	if err == nil && p.running[0] != nil {
		err = p.ready(ctx)
	}
	if err == nil {
		p.sources, err = sourcesOf(ctx, p.at[1])
	}
	return err
}

// contestOf measures a contest with so many rounds. A round counts only if nobody else used the machine.
func (s *planeVLLM) contestOf(ctx context.Context, c contest, rounds int, round time.Duration) error {
	cfg := s.Config
	cfg.Rounds, cfg.Round = rounds, round
	return (&Run{Config: cfg, report: s.report, out: s.out}).contest(ctx, c)
}

// nextPrompt is a prompt that nobody has seen.
func (s *planeVLLM) nextPrompt(tokens int) string {
	s.asked++
	return vllmPrompt(s.asked, tokens)
}
