package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// stockSuite measures the hand-over of stock vLLM on its CPU backend.
func stockSuite() Suite {
	return Suite{
		Name:  "handover/vllm",
		Brief: "from prefill's answer to decode's first event, stock vLLM on CPUs, push and pull",
		run: func(ctx context.Context, r *Run) error {
			r.rounds(max(r.Rounds, stockRounds))
			var failed error
			for _, connector := range []string{"vllm-nixl-push", "vllm-nixl-pull"} {
				if err := r.stock(ctx, connector); err != nil {
					failed = errors.Join(failed, fmt.Errorf("%s: %w", connector, err))
					r.report.Notes = append(r.report.Notes, fmt.Sprintf("%s failed: %s", connector, firstLine(err.Error())))
				}
			}
			if ctx.Err() == nil && len(r.report.Rows) > 0 { // what the other has given took minutes
				return nil
			}
			return failed
		},
	}
}

// stockRounds is the least number of rounds: fewer tell nothing where engines take a hundred times what routers do.
const stockRounds = 30

// stock measures one connector.
func (r *Run) stock(ctx context.Context, connector string) error {
	name := strings.TrimPrefix(connector, "vllm-nixl-")
	if !r.wants(name) {
		return nil
	}
	python, err := r.stockPython()
	if err != nil {
		r.report.Notes = append(r.report.Notes, name+": stock vLLM is not installed beside the peers; `make e2e-vllm` installs it.")
		return nil
	}
	p, err := r.openStock(ctx, connector, python)
	if p != nil {
		defer p.close()
	}
	if err != nil {
		return err
	}
	c := contest{name: name, where: "two CPUs for all", metrics: []metric{{what: "prefill's answer to first event", unit: "ms"}, {what: "TTFT", unit: "ms"}}}
	for i, x := range p.targets {
		c.contenders = append(c.contenders, p.contender(x.of, x.peer, p.cannot[i], func(ctx context.Context, prompt string) (heard, error) {
			return p.through(ctx, p.running[i].address, prompt, nil)
		}))
	}
	c.contenders = append(c.contenders, p.contender("direct", false, "", p.byHand))
	nth := len(r.report.Rows)
	cfg := r.Config
	cfg.Others = math.Inf(1) // the engines' threads are what is busy
	rows, err := c.measure(ctx, cfg, r.out)
	if err != nil {
		return err
	}
	r.report.Rows = append(r.report.Rows, rows...)
	row := r.report.Rows[nth]
	for _, f := range row.Beside {
		if f.Cannot != "" {
			continue
		}
		d := make([]float64, len(f.Rounds))
		for i := range d {
			d[i] = row.Ours.Rounds[i] - f.Rounds[i]
		}
		low, high := medianInterval(d)
		r.report.Notes = append(r.report.Notes, fmt.Sprintf("%s: pdrouter less %s, of %d pairs: median %+.2f ms, 95 %% interval %+.2f to %+.2f ms.", name, f.Of, len(d), spread(d).Median, low, high))
	}
	return nil
}

// medianInterval is the interval between two of the figures that holds the median of what they are drawn from with at least 95 %,
// whatever their distribution: as many lie below it as of so many throws of a coin come up heads.
func medianInterval(figures []float64) (low, high float64) {
	sorted := slices.Sorted(slices.Values(figures))
	n := len(sorted)
	if n == 0 {
		return math.NaN(), math.NaN()
	}
	p, below := math.Pow(0.5, float64(n)), 0.0 // of exactly k heads; of at most k
	k := 0
	for below+p <= 0.025 {
		below += p
		p *= float64(n-k) / float64(k+1)
		k++
	}
	k = max(k-1, 0)
	return sorted[k], sorted[n-1-k]
}

// contender makes one request a round.
func (p *stockPair) contender(of string, peer bool, cannot string, ask func(context.Context, string) (heard, error)) contender {
	return contender{of: of, peer: peer, cannot: cannot, round: func(ctx context.Context, _ time.Duration) (sample, error) {
		p.asked++
		prompt := fmt.Sprintf("%d is asked by %s. ", p.asked, of)
		prompt += strings.Repeat(strconv.Itoa(p.asked*104729)+" ", 80)
		p.relay.expect()
		begun := time.Now()
		got, err := ask(ctx, prompt)
		if err != nil {
			return sample{}, err
		}
		passed, err := p.relay.passed(ctx)
		if err != nil {
			return sample{}, err
		}
		in := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
		return sample{figures: []float64{in(got.first.Sub(passed)), in(got.first.Sub(begun))}, done: 1}, nil
	}}
}

// heard is a streamed answer.
type heard struct {
	first time.Time // when its first event was here
	text  string
}

// stockTokens is how many tokens are asked for.
const stockTokens = 4

// through asks for a stream. Without its end, or with another number of tokens, it is void.
func (p *stockPair) through(ctx context.Context, address, prompt string, more map[string]any) (got heard, err error) {
	answer, err := p.post(ctx, address, prompt, stockTokens, true, more)
	if err != nil {
		return got, err
	}
	defer answer.Body.Close()
	events, tokens := 0, 0 // an event may hold several tokens: what counts is what the engine counted
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
			continue
		case data == "[DONE]":
			if tokens != stockTokens {
				return got, fmt.Errorf("%w: a stream of %d tokens has %d in %d events", errVoid, stockTokens, tokens, events)
			}
			return got, nil
		case events == 0:
			got.first = time.Now()
		}
		events++
		var event struct {
			Choices []struct{ Text string }
			Error   any
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil || event.Error != nil {
			return got, fmt.Errorf("%w: %.300s", errVoid, data)
		}
		for _, c := range event.Choices {
			got.text += c.Text
		}
		if n, err := strconv.Atoi(valueOf([]byte(data), "completion_tokens")); err == nil {
			tokens = n
		}
	}
	return got, fmt.Errorf("%w: a stream ends without [DONE]: %w", errVoid, errors.Join(lines.Err(), io.ErrUnexpectedEOF))
}

// post sends a completion request.
func (p *stockPair) post(ctx context.Context, address, prompt string, tokens int, stream bool, more map[string]any) (*http.Response, error) {
	body := map[string]any{"model": benchModel, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": stream}
	if stream {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
	if more != nil {
		body["kv_transfer_params"] = more
	}
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/completions", bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("X-Request-Id", p.name())
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 300))
		answer.Body.Close()
		return nil, fmt.Errorf("%w: status %d: %s", errVoid, answer.StatusCode, said)
	}
	return answer, nil
}

// name is the request's, at both engines.
func (p *stockPair) name() string { return fmt.Sprintf("bench-%d", p.asked) }

// byHand makes both legs itself, with what prefill's first answer has told of it.
func (p *stockPair) byHand(ctx context.Context, prompt string) (heard, error) {
	asks := map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": p.name()}
	if p.connector == "vllm-nixl-pull" {
		handed, err := p.handOff(ctx, prompt, asks)
		if err != nil {
			return heard{}, err
		}
		return p.through(ctx, p.decode[0].address, prompt, handed)
	}
	if p.handed == nil {
		if err := p.learn(ctx, prompt); err != nil {
			return heard{}, err
		}
		asks["transfer_id"] = p.name()
	}
	takes := map[string]any{"do_remote_decode": false, "do_remote_prefill": true, "remote_request_id": "cmpl-" + p.name() + "-0", "transfer_id": p.name()}
	for _, key := range []string{"remote_engine_id", "remote_host", "remote_port", "tp_size", "pp_size", "dcp_size"} {
		takes[key] = p.handed[key]
	}
	prefilled := make(chan error, 1)
	go func() {
		_, err := p.handOff(ctx, prompt, asks)
		prefilled <- err
	}()
	got, err := p.through(ctx, p.decode[0].address, prompt, takes)
	return got, errors.Join(err, <-prefilled)
}

// learn asks prefill who it is, with a prompt of its own, which nobody takes. The next request has another name.
func (p *stockPair) learn(ctx context.Context, prompt string) (err error) {
	asks := map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": p.name()}
	p.handed, err = p.handOff(ctx, "who are you, "+prompt, asks)
	p.asked++
	return err
}

// handOff makes a prefill leg and returns the hand-off of its answer.
func (p *stockPair) handOff(ctx context.Context, prompt string, asks map[string]any) (map[string]any, error) {
	answer, err := p.post(ctx, p.prefill[0].address, prompt, 1, false, asks)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var said struct {
		Params map[string]any `json:"kv_transfer_params"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&said); err != nil {
		return nil, fmt.Errorf("%w: prefill's answer: %w", errVoid, err)
	}
	return said.Params, nil
}
