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
	return Suite{Name: "plane/vllm", Brief: "vLLM on pdrouter's plane beside vLLM with NixlPushConnector: rest, hand-over, CPU, a first request", About: planeVLLMAbout, run: measurePlaneVLLM}
}

const planeVLLMAbout = "Two pairs of vLLM 0.32.0 (CPU build, a two-layer Llama with random weights, float32), each one prefill and one decode engine behind a pdrouter of its own: one pair hands over by pdrouter's connector (transport tcp, bytes in host memory), the other by NixlPushConnector. Prefill of both is on one CPU, decode of both on another. While one pair is measured, all processes of the other are stopped; who is measured is decided in turns. " +
	"A run is void unless every answer is what prefill gives by itself to the same prompt, and decode had every prompt from prefill (`vllm:prompt_tokens_by_source_total`; it may compute the last token of a prompt again). Prompts are new to every cache unless it says otherwise, one request at a time, 4 tokens are answered. CPU time is of prefill and decode together, by the kernel's count in ns: **all of both engines** is all of their processes, with the servers of their routes; **ranks** are the processes that compute and move KV, with all their threads; **main threads of cores** schedule, and have the scheduler's side of the connector. Neither gateways nor the client count. While a rank computes, its core's main thread asks for its answer again and again and gives the CPU away in between (vLLM's own way), so its time grows with that of a prompt, and with what the CPU has left for it. Threads that never rest, as *rest* shows them, are in every CPU time here, and on a machine of two CPUs in every time: the others wait for them.\n\n" +
	"- **rest, not used yet**: both engines have started. The plane's pair is behind its gateway and has shaken hands, the other has no gateway and has been asked nothing. **rest** is later, behind both gateways, which ask for the engines' health every 2 s, after hundreds of transfers.\n" +
	"- **hand-over**: from the last byte of prefill's answer until the client has read decode's first event, as in handover/vllm; **TTFT** is of the same requests. Both pairs are asked for the same prompts.\n" +
	"- **request**: CPU time a request. **KV at hand** is the same work without a transfer: prefill is asked directly for one token of a new prompt, and decode directly for 4 tokens of a prompt that it holds, so that it computes the last token alone. What a request takes beyond that is the transfer's: registering, writing, telling, and the steps that engines make while they wait. It is given below, with the interval that holds the median with 95 % (by order statistics).\n" +
	"- **first request**: TTFT of the first request to engines that have just started. pdrouter has had its pair shake hands before, as it does with every pair; that takes a request of two tokens. *By hand* is a client that makes both legs itself and has asked prefill who it is, with a request of one token: the connector's handshakes, and decode's first step ever, are in its first request. **later** is the median of later requests by the same way. Each start gives one figure.\n"

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
