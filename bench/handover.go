package bench

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
)

// handoverSuite measures what a router takes of the time between prefill's end and decode's first event, in front of engines
// whose own part of it is modelled.
func handoverSuite() Suite {
	return Suite{
		Name:  "handover/modelled",
		Brief: "from the end of prefill to decode's first event, modelled engines, push and pull",
		run: func(ctx context.Context, r *Run) error {
			pull, err := r.handover(ctx, "vllm-nixl-pull")
			if err != nil {
				return err
			}
			push, err := r.handover(ctx, "vllm-nixl-push")
			if err == nil && pull.took > 0 && push.took > 0 {
				r.report.Notes = append(r.report.Notes, fmt.Sprintf("Push saves %.2f ms of pull's hand-over (%.2f ms of %.2f ms, medians of pdrouter's requests): decode is asked %.1f ms before prefill has finished, with pull %.2f ms after it, so its leg is read, tokenised and given its blocks while prefill runs.",
					pull.took-push.took, push.took, pull.took, push.early, -pull.early))
			}
			return err
		},
	}
}

// The requests of a hand-over.
const (
	handoverPrompt = 2048 // tokens
	handoverAnswer = 3
)

// handedOver is medians of all hand-overs through pdrouter, in ms: what they took, and how long before prefill's end decode was
// asked.
type handedOver struct{ took, early float64 }

// handover measures one connector.
func (r *Run) handover(ctx context.Context, connector string) (sum handedOver, err error) {
	name := strings.TrimPrefix(connector, "vllm-nixl-")
	if !r.wants(name) {
		return sum, nil
	}
	targets := append([]target{gatewayTarget(), floorTarget()}, vllmPeers(r.Config, connector)...)
	m, err := modelledCast{spec: ModelledSpec{Costs: "llama-3.1-8b-h100", Connector: connector, Prefill: 1, Decode: 1, Budget: chunkBudget, Speed: 1}, where: oneCPU, targets: targets}.open(ctx, r.Config)
	if err != nil {
		return sum, err
	}
	defer m.close()
	c := contest{name: name, where: m.place.where, metrics: []metric{
		{what: "prefill finished to first event", unit: "ms", goals: []Goal{{Beside: "direct", Times: 1, Plus: 0.3}}},
		{what: "TTFT", unit: "ms"},
	}}
	var took, early []float64
	for i, x := range targets {
		note := func(h [3]float64) {
			if x.of == us {
				took, early = append(took, h[0]), append(early, h[2])
			}
		}
		c.contenders = append(c.contenders, m.handoverOf(x.of, x.peer, m.cannot[i], func() handoverClient { return through(m.running[i].address, "") }, note))
	}
	c.contenders = append(c.contenders, m.handoverOf("direct", false, "", m.byHand, func([3]float64) {}))
	if _, err := m.quiet(ctx); err != nil {
		return sum, err
	}
	nth := len(r.report.Rows)
	if err = r.contest(ctx, c); err == nil {
		row := r.report.Rows[nth]
		direct := row.Beside[len(row.Beside)-1].Median
		r.report.Notes = append(r.report.Notes, fmt.Sprintf("%s: pdrouter %.2f ms, direct %.2f ms, %+.2f ms between them.", name, row.Ours.Median, direct, row.Ours.Median-direct))
	}
	return handedOver{spread(took).Median, spread(early).Median}, err
}

// handoverClient makes one request and returns when it was begun, and its first event read.
type handoverClient func(ctx context.Context, body []byte) (begun, first time.Time, err error)

// handoverOf is a contender: as many requests as fit into a round, each with its own prompt. Its figures are medians.
func (m *modelledStage) handoverOf(of string, peer bool, cannot string, client func() handoverClient, note func([3]float64)) contender {
	var ask handoverClient
	return contender{of: of, peer: peer, cannot: cannot, round: func(ctx context.Context, d time.Duration) (sample, error) {
		if ask == nil {
			ask = client()
		}
		before, err := m.use()
		if err != nil {
			return sample{}, err
		}
		var figures [2][]float64
		for end := before.at.Add(d); time.Now().Before(end) || len(figures[0]) == 0; {
			got, err := m.oneHandover(ctx, ask)
			if err != nil {
				return sample{}, err
			}
			note(got)
			for i := range figures {
				figures[i] = append(figures[i], got[i])
			}
		}
		after, err := m.use()
		s := sample{disturbance: after.since(before), done: len(figures[0])}
		for _, f := range figures {
			s.figures = append(s.figures, spread(f).Median)
		}
		return s, err
	}}
}

// oneHandover makes a request and looks at the engines' moments of it. It returns, in ms, prefill's end to the first event, the
// time to that from the request's beginning, and from decode being asked to prefill's end.
func (m *modelledStage) oneHandover(ctx context.Context, ask handoverClient) ([3]float64, error) {
	var none [3]float64
	m.asked++
	head := fmt.Sprintf("%d ", m.asked)
	body := fmt.Appendf(nil, `{"model":%q,"stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"%s"}]}`,
		benchModel, handoverAnswer, head+strings.Repeat("abc ", handoverPrompt)[:handoverPrompt*textPerToken-len(head)])
	if _, _, err := m.fleet(ctx); err != nil { // takes what was done before
		return none, err
	}
	begun, first, err := ask(ctx, body)
	if err != nil {
		return none, err
	}
	r, _, err := m.fleet(ctx)
	if err != nil {
		return none, err
	}
	if len(r.Handovers) != 1 {
		return none, fmt.Errorf("%w: one request was %d hand-overs", errVoid, len(r.Handovers))
	}
	h := r.Handovers[0]
	in := func(d int64) float64 { return float64(d) / float64(time.Millisecond) }
	return [3]float64{in(first.UnixNano() - h.Finished), in(first.Sub(begun).Nanoseconds()), in(h.Finished - h.Asked)}, nil
}

// through asks whoever listens at an address; path "" is /v1/chat/completions.
func through(address, path string) handoverClient {
	var d net.Dialer
	c := &opener{began: time.Now(), dial: func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }}
	return func(ctx context.Context, body []byte) (begun, first time.Time, err error) {
		o := outcome{arrival: arrival{path: path, body: body, tokens: handoverAnswer}}
		c.request(ctx, &o)
		if err := o.fault(); err != nil {
			return begun, first, err
		}
		return c.began.Add(o.sent), c.began.Add(o.chunks[0]), nil
	}
}

// byHand makes both legs itself.
func (m *modelledStage) byHand() handoverClient {
	decode := through(m.decode[0].address, "")
	prefill := &fasthttp.HostClient{Addr: m.prefill[0].address, NoDefaultUserAgentHeader: true}
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
		return bytes.Clone(paramsIn(resp.Body())), nil
	}
	if m.connector == "vllm-nixl-pull" {
		return func(ctx context.Context, body []byte) (begun, first time.Time, err error) {
			begun = time.Now()
			params, err := ask(append([]byte(askPrefill), body[1:]...))
			if err != nil {
				return begun, first, err
			}
			_, first, err = decode(ctx, slices.Concat([]byte("{"), params, []byte(","), body[1:]))
			return begun, first, err
		}
	}
	return func(ctx context.Context, body []byte) (begun, first time.Time, err error) {
		id := fmt.Sprintf("by-hand-%d", m.asked)
		begun = time.Now()
		prefilled := make(chan error, 1)
		go func() {
			_, err := ask(append(fmt.Appendf(nil, `{"max_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":%q},`, id), body[1:]...))
			prefilled <- err
		}()
		_, first, err = decode(ctx, append(fmt.Appendf(nil, `{"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":%q,"remote_host":"127.0.0.1","remote_port":1,"tp_size":1,"pp_size":1,"dcp_size":1,"remote_request_id":%q,"transfer_id":%[2]q},`, modelEngineID(0), id), body[1:]...))
		return begun, first, errors.Join(err, <-prefilled)
	}
}
