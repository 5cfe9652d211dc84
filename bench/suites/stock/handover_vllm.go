package stock

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

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
	"pdrouter/bench/sim"
)

// Suite measures the hand-off of stock vLLM on its CPU backend.
func Suite() harness.Suite {
	return harness.Suite{
		Name:  "handover/vllm",
		Brief: "from prefill's answer to decode's first event, stock vLLM on CPUs, push and pull",
		Run: func(ctx context.Context, r *harness.Run) error {
			r.SetRounds(max(r.Rounds, StockRounds))
			var failed error
			for _, connector := range []string{"vllm-nixl-push", "vllm-nixl-pull"} {
				if err := stock(ctx, r, connector); err != nil {
					failed = errors.Join(failed, fmt.Errorf("%s: %w", connector, err))
					r.Report.Notes = append(r.Report.Notes, fmt.Sprintf("%s failed: %s", connector, harness.FirstLine(err.Error())))
				}
			}
			if ctx.Err() == nil && len(r.Report.Rows) > 0 { // what the other has given took minutes
				return nil
			}
			return failed
		},
	}
}

// StockRounds is the least number of rounds: fewer tell nothing where engines take a hundred times what routers do.
const StockRounds = 30

// stock measures one connector.
func stock(ctx context.Context, r *harness.Run, connector string) error {
	name := strings.TrimPrefix(connector, "vllm-nixl-")
	if !r.Wants(name) {
		return nil
	}
	python, err := StockPython(r.Config)
	if err != nil {
		r.Report.Notes = append(r.Report.Notes, name+": stock vLLM is not installed beside the peers; `make e2e-vllm` installs it.")
		return nil
	}
	p, err := openStock(ctx, r, connector, python)
	if p != nil {
		defer p.Close()
	}
	if err != nil {
		return err
	}
	c := harness.Comparison{Name: name, Where: "two CPUs for all", Metrics: []harness.Metric{{What: "prefill's answer to first event", Unit: "ms"}, {What: "TTFT", Unit: "ms"}}}
	for i, x := range p.Targets {
		c.Systems = append(c.Systems, p.system(x.Of, x.Peer, p.Cannot[i], func(ctx context.Context, prompt string) (Heard, error) {
			return p.Through(ctx, p.Running[i].Address, prompt, nil)
		}))
	}
	c.Systems = append(c.Systems, p.system("direct", false, "", p.ByHand))
	nth := len(r.Report.Rows)
	cfg := r.Config
	cfg.Others = math.Inf(1) // the engines' threads are what is busy
	rows, err := c.Measure(ctx, cfg, r.Out)
	if err != nil {
		return err
	}
	r.Report.Rows = append(r.Report.Rows, rows...)
	row := r.Report.Rows[nth]
	for _, f := range row.Beside {
		if f.Cannot != "" {
			continue
		}
		d := make([]float64, len(f.Rounds))
		for i := range d {
			d[i] = row.Ours.Rounds[i] - f.Rounds[i]
		}
		low, high := MedianInterval(d)
		r.Report.Notes = append(r.Report.Notes, fmt.Sprintf("%s: pdrouter less %s, of %d pairs: median %+.2f ms, 95 %% interval %+.2f to %+.2f ms.", name, f.Of, len(d), report.SpreadOf(d).Median, low, high))
	}
	return nil
}

// MedianInterval is the interval between two of the figures that holds the median of what they are drawn from with at least 95 %,
// whatever their distribution: as many lie below it as of so many throws of a coin come up heads.
func MedianInterval(figures []float64) (low, high float64) {
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

// system makes one request a round.
func (p *StockPair) system(of string, peer bool, cannot string, ask func(context.Context, string) (Heard, error)) harness.System {
	return harness.System{Of: of, Peer: peer, Cannot: cannot, Round: func(ctx context.Context, _ time.Duration) (harness.Sample, error) {
		p.Asked++
		prompt := fmt.Sprintf("%d is asked by %s. ", p.Asked, of)
		prompt += strings.Repeat(strconv.Itoa(p.Asked*104729)+" ", 80)
		p.Relay.Expect()
		begun := time.Now()
		got, err := ask(ctx, prompt)
		if err != nil {
			return harness.Sample{}, err
		}
		passed, err := p.Relay.Passed(ctx)
		if err != nil {
			return harness.Sample{}, err
		}
		in := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
		return harness.Sample{Figures: []float64{in(got.First.Sub(passed)), in(got.First.Sub(begun))}, Done: 1}, nil
	}}
}

// Heard is a streamed answer.
type Heard struct {
	First time.Time // when its first event was here
	Text  string
}

// stockTokens is how many tokens are asked for.
const stockTokens = 4

// Through asks for a stream. Without its end, or with another number of tokens, it is void.
func (p *StockPair) Through(ctx context.Context, address, prompt string, more map[string]any) (got Heard, err error) {
	answer, err := p.Post(ctx, address, prompt, stockTokens, true, more)
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
				return got, fmt.Errorf("%w: a stream of %d tokens has %d in %d events", load.ErrVoid, stockTokens, tokens, events)
			}
			return got, nil
		case events == 0:
			got.First = time.Now()
		}
		events++
		var event struct {
			Choices []struct{ Text string }
			Error   any
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil || event.Error != nil {
			return got, fmt.Errorf("%w: %.300s", load.ErrVoid, data)
		}
		for _, c := range event.Choices {
			got.Text += c.Text
		}
		if n, err := strconv.Atoi(sim.ValueOf([]byte(data), "completion_tokens")); err == nil {
			tokens = n
		}
	}
	return got, fmt.Errorf("%w: a stream ends without [DONE]: %w", load.ErrVoid, errors.Join(lines.Err(), io.ErrUnexpectedEOF))
}

// Post sends a completion request.
func (p *StockPair) Post(ctx context.Context, address, prompt string, tokens int, stream bool, more map[string]any) (*http.Response, error) {
	body := map[string]any{"model": fake.Model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": stream}
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
		return nil, fmt.Errorf("%w: status %d: %s", load.ErrVoid, answer.StatusCode, said)
	}
	return answer, nil
}

// name is the request's, at both engines.
func (p *StockPair) name() string { return fmt.Sprintf("bench-%d", p.Asked) }

// ByHand makes both legs itself, with what prefill's first answer has told of it.
func (p *StockPair) ByHand(ctx context.Context, prompt string) (Heard, error) {
	asks := map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": p.name()}
	if p.Connector == "vllm-nixl-pull" {
		handed, err := p.handOff(ctx, prompt, asks)
		if err != nil {
			return Heard{}, err
		}
		return p.Through(ctx, p.Decode[0].Address, prompt, handed)
	}
	if p.handed == nil {
		if err := p.Learn(ctx, prompt); err != nil {
			return Heard{}, err
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
	got, err := p.Through(ctx, p.Decode[0].Address, prompt, takes)
	return got, errors.Join(err, <-prefilled)
}

// Learn asks prefill who it is, with a prompt of its own, which nobody takes. The next request has another name.
func (p *StockPair) Learn(ctx context.Context, prompt string) (err error) {
	asks := map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": p.name()}
	p.handed, err = p.handOff(ctx, "who are you, "+prompt, asks)
	p.Asked++
	return err
}

// handOff makes a prefill leg and returns the hand-off of its answer.
func (p *StockPair) handOff(ctx context.Context, prompt string, asks map[string]any) (map[string]any, error) {
	answer, err := p.Post(ctx, p.Prefill[0].Address, prompt, 1, false, asks)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var said struct {
		Params map[string]any `json:"kv_transfer_params"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&said); err != nil {
		return nil, fmt.Errorf("%w: prefill's answer: %w", load.ErrVoid, err)
	}
	return said.Params, nil
}
