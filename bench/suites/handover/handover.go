package handover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
	"pdrouter/bench/sim"
)

// Suite measures what a router takes of the time between prefill's end and decode's first event, in front of engines
// whose own part of it is modelled.
func Suite() harness.Suite {
	return harness.Suite{
		Name:  "handover/modelled",
		Brief: "from the end of prefill to decode's first event, modelled engines, push and pull",
		Run: func(ctx context.Context, r *harness.Run) error {
			pull, err := handover(ctx, r, "vllm-nixl-pull")
			if err != nil {
				return err
			}
			push, err := handover(ctx, r, "vllm-nixl-push")
			if err == nil && pull.took > 0 && push.took > 0 {
				r.Report.Notes = append(r.Report.Notes, fmt.Sprintf("Push saves %.2f ms of pull's hand-off (%.2f ms of %.2f ms, medians of pdrouter's requests): decode is asked %.1f ms before prefill has finished, with pull %.2f ms after it, so its leg is read, tokenised and given its blocks while prefill runs.",
					pull.took-push.took, push.took, pull.took, push.early, -pull.early))
			}
			return err
		},
	}
}

// The requests of a hand-off.
const (
	handoverPrompt = 2048 // tokens
	handoverAnswer = 3
)

// handedOver is medians of all hand-offs through pdrouter, in ms: what they took, and how long before prefill's end decode was
// asked.
type handedOver struct{ took, early float64 }

// handover measures one connector.
func handover(ctx context.Context, r *harness.Run, connector string) (sum handedOver, err error) {
	name := strings.TrimPrefix(connector, "vllm-nixl-")
	if !r.Wants(name) {
		return sum, nil
	}
	targets := append([]harness.Target{harness.GatewayTarget(), harness.BaselineTarget()}, harness.VllmPeers(r.Config, connector)...)
	m, err := harness.SimSetup{Spec: sim.Spec{Costs: "llama-3.1-8b-h100", Connector: connector, Prefill: 1, Decode: 1, Budget: sim.ChunkBudget, Speed: 1}, Where: harness.OneCPU, Targets: targets}.Open(ctx, r.Config)
	if err != nil {
		return sum, err
	}
	defer m.Close()
	c := harness.Comparison{Name: name, Where: m.Place.Where, Metrics: []harness.Metric{
		{What: "prefill finished to first event", Unit: "ms", Goals: []report.Goal{{Beside: "direct", Times: 1, Plus: 0.3}}},
		{What: "TTFT", Unit: "ms"},
	}}
	var took, early []float64
	for i, x := range targets {
		note := func(h [3]float64) {
			if x.Of == report.Us {
				took, early = append(took, h[0]), append(early, h[2])
			}
		}
		c.Systems = append(c.Systems, handoverOf(m, x.Of, x.Peer, m.Cannot[i], func() handoverClient { return through(m.Running[i].Address, "") }, note))
	}
	c.Systems = append(c.Systems, handoverOf(m, "direct", false, "", func() handoverClient { return byHand(m) }, func([3]float64) {}))
	if _, err := m.Quiet(ctx); err != nil {
		return sum, err
	}
	nth := len(r.Report.Rows)
	if err = r.Compare(ctx, c); err == nil {
		row := r.Report.Rows[nth]
		direct := row.Beside[len(row.Beside)-1].Median
		r.Report.Notes = append(r.Report.Notes, fmt.Sprintf("%s: pdrouter %.2f ms, direct %.2f ms, %+.2f ms between them.", name, row.Ours.Median, direct, row.Ours.Median-direct))
	}
	return handedOver{report.SpreadOf(took).Median, report.SpreadOf(early).Median}, err
}

// handoverClient makes one request and returns when it was begun, and its first event read.
type handoverClient func(ctx context.Context, body []byte) (begun, first time.Time, err error)

// handoverOf is a system: as many requests as fit into a round, each with its own prompt. Its figures are medians.
func handoverOf(m *harness.SimStage, of string, peer bool, cannot string, client func() handoverClient, note func([3]float64)) harness.System {
	var ask handoverClient
	return harness.System{Of: of, Peer: peer, Cannot: cannot, Round: func(ctx context.Context, d time.Duration) (harness.Sample, error) {
		if ask == nil {
			ask = client()
		}
		before, err := m.Use()
		if err != nil {
			return harness.Sample{}, err
		}
		var figures [2][]float64
		for end := before.At.Add(d); time.Now().Before(end) || len(figures[0]) == 0; {
			got, err := oneHandover(ctx, m, ask)
			if err != nil {
				return harness.Sample{}, err
			}
			note(got)
			for i := range figures {
				figures[i] = append(figures[i], got[i])
			}
		}
		after, err := m.Use()
		s := harness.Sample{Disturbance: after.Since(before), Done: len(figures[0])}
		for _, f := range figures {
			s.Figures = append(s.Figures, report.SpreadOf(f).Median)
		}
		return s, err
	}}
}

// oneHandover makes a request and looks at the engines' moments of it. It returns, in ms, prefill's end to the first event, the
// time to that from the request's beginning, and from decode being asked to prefill's end.
func oneHandover(ctx context.Context, m *harness.SimStage, ask handoverClient) ([3]float64, error) {
	var none [3]float64
	m.Asked++
	head := fmt.Sprintf("%d ", m.Asked)
	body := fmt.Appendf(nil, `{"model":%q,"stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"%s"}]}`,
		fake.Model, handoverAnswer, head+strings.Repeat("abc ", handoverPrompt)[:handoverPrompt*sim.TextPerToken-len(head)])
	if _, _, err := m.Fleet(ctx); err != nil { // takes what was done before
		return none, err
	}
	begun, first, err := ask(ctx, body)
	if err != nil {
		return none, err
	}
	r, _, err := m.Fleet(ctx)
	if err != nil {
		return none, err
	}
	if len(r.Handovers) != 1 {
		return none, fmt.Errorf("%w: one request was %d hand-offs", load.ErrVoid, len(r.Handovers))
	}
	h := r.Handovers[0]
	in := func(d int64) float64 { return float64(d) / float64(time.Millisecond) }
	return [3]float64{in(first.UnixNano() - h.Finished), in(first.Sub(begun).Nanoseconds()), in(h.Finished - h.Asked)}, nil
}

// through asks whoever listens at an address; path "" is /v1/chat/completions.
func through(address, path string) handoverClient {
	var d net.Dialer
	c := &load.Opener{Began: time.Now(), Dial: func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }}
	return func(ctx context.Context, body []byte) (begun, first time.Time, err error) {
		o := load.Outcome{Arrival: load.Arrival{Path: path, Body: body, Tokens: handoverAnswer}}
		c.Request(ctx, &o)
		if err := o.Fault(); err != nil {
			return begun, first, err
		}
		return c.Began.Add(o.Sent), c.Began.Add(o.Chunks[0]), nil
	}
}

// byHand makes both legs itself.
func byHand(m *harness.SimStage) handoverClient {
	decode := through(m.Decode[0].Address, "")
	prefill := &fasthttp.HostClient{Addr: m.Prefill[0].Address, NoDefaultUserAgentHeader: true}
	ask := func(body []byte) ([]byte, error) {
		req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
		defer fasthttp.ReleaseRequest(req)
		defer fasthttp.ReleaseResponse(resp)
		req.Header.SetMethod(fasthttp.MethodPost)
		req.Header.SetContentType("application/json")
		req.SetRequestURI("/v1/chat/completions")
		req.SetHost("engine")
		req.SetBodyRaw(body)
		if err := prefill.Do(req, resp); err != nil {
			return nil, fmt.Errorf("bench: prefill: %w", err)
		}
		if resp.StatusCode() != http.StatusOK {
			return nil, fmt.Errorf("bench: prefill: status %d: %.300s", resp.StatusCode(), resp.Body())
		}
		return bytes.Clone(fake.ParamsIn(resp.Body())), nil
	}
	if m.Connector == "vllm-nixl-pull" {
		return func(ctx context.Context, body []byte) (begun, first time.Time, err error) {
			begun = time.Now()
			params, err := ask(append([]byte(fake.AskPrefill), body[1:]...))
			if err != nil {
				return begun, first, err
			}
			_, first, err = decode(ctx, slices.Concat([]byte("{"), params, []byte(","), body[1:]))
			return begun, first, err
		}
	}
	return func(ctx context.Context, body []byte) (begun, first time.Time, err error) {
		id := fmt.Sprintf("by-hand-%d", m.Asked)
		begun = time.Now()
		prefilled := make(chan error, 1)
		go func() {
			_, err := ask(append(fmt.Appendf(nil, `{"max_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":%q},`, id), body[1:]...))
			prefilled <- err
		}()
		_, first, err = decode(ctx, append(fmt.Appendf(nil, `{"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":%q,"remote_host":"127.0.0.1","remote_port":1,"tp_size":1,"pp_size":1,"dcp_size":1,"remote_request_id":%q,"transfer_id":%[2]q},`, sim.ModelEngineID(0), id), body[1:]...))
		return begun, first, errors.Join(err, <-prefilled)
	}
}
