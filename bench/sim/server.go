package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"pdrouter/bench/fake"
)

// Spec says which modelled engines to run. They are one process, so that what goes between them does so in one time.
type Spec struct {
	Costs     string // a name of costs.json
	Connector string // as pdrouter's configuration has it: vllm-nixl-push, vllm-nixl-pull, none
	Prefill   int
	Decode    int
	Budget    int     // tokens of a step of an engine that decodes
	Speed     float64 // how much faster than real their time runs
}

// prefillBudget is the tokens of a step of an engine that only computes prompts: vLLM's default for a server on this kind of
// engine. Nobody waits there for the next token.
const prefillBudget = 8192

// Serve runs modelled engines until ctx ends. Before the first request it writes their addresses, those of prefill
// first, on one line to out.
func Serve(ctx context.Context, spec Spec, out io.Writer) error {
	c, err := CostsOf(spec.Costs)
	if err != nil {
		return err
	}
	if spec.Prefill < 0 || spec.Decode < 1 || spec.Budget < 1 || spec.Speed <= 0 {
		return fmt.Errorf("bench: modelled engines: %+v; want at least one that decodes, and a budget and a speed of more than 0", spec)
	}
	clock, err := newModelClock(NewModelFleet(spec.Connector == "vllm-nixl-push", ModelEngines(c, spec.Prefill, spec.Decode, spec.Budget)...), spec.Speed)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	group.Go(clock.run)
	defer group.Wait()
	defer clock.close()
	return serveModelled(ctx, clock, spec, out)
}

// ModelEngines are those for prefill, then those that decode, which have a budget of so many tokens a step.
func ModelEngines(c Costs, prefill, decode, budget int) []*modelEngine {
	var engines []*modelEngine
	for i := range prefill + decode {
		of := budget
		if i < prefill {
			of = prefillBudget
		}
		engines = append(engines, newModelEngine(c, of))
	}
	return engines
}

// serveModelled gives each engine a listener.
func serveModelled(ctx context.Context, clock *modelClock, spec Spec, out io.Writer) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var group sync.WaitGroup
	defer group.Wait()
	var addresses []string
	for i := range spec.Prefill + spec.Decode {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			stop(nil)
			return fmt.Errorf("bench: %w", err)
		}
		addresses = append(addresses, ln.Addr().String())
		e := &modelServer{clock: clock, nth: i, push: clock.fleet.push, port: ln.Addr().(*net.TCPAddr).Port, stopped: ctx.Done(), seed: modelSeed}
		s := &fasthttp.Server{Handler: e.serve, NoDefaultServerHeader: true, NoDefaultDate: true, MaxRequestBodySize: 64 << 20, CloseOnShutdown: true}
		group.Go(func() {
			if err := s.Serve(ln); err != nil {
				stop(fmt.Errorf("bench: %w", err))
			}
		})
		group.Go(func() {
			<-ctx.Done()
			_ = s.Shutdown() // the bench is over; whoever is still connected is the bench itself
		})
	}
	fmt.Fprintln(out, strings.Join(addresses, " "))
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// modelSeed is of the hashes of all engines: what they have in common is found by them.
var modelSeed = maphash.MakeSeed()

// modelServer is one modelled engine as stock vLLM's protocol shows it to a router. A token of a prompt is four bytes of its
// text, of an answer one event.
type modelServer struct {
	clock   *modelClock
	nth     int
	push    bool
	port    int
	stopped <-chan struct{}
	seed    maphash.Seed

	prefill, decode, other atomic.Int64
	drawn                  atomic.Int64
}

// TextPerToken is bytes of a prompt's text.
const TextPerToken = 4

// FleetPath is where any of the engines tells what all of them have done.
const FleetPath = "/bench/fleet"

// FleetReading is what is told there.
type FleetReading struct {
	Prompts   int             `json:"prompts"`  // tokens of the prompts that were asked for
	Found     int             `json:"found"`    // of those, tokens in the engine's prefix cache
	Possible  int             `json:"possible"` // tokens that one cache of all engines without bounds would have had
	Steps     []int           `json:"steps"`    // by engine
	ITL99     time.Duration   `json:"itl_p99"`  // between two tokens as they were due, in the engines' time
	Late99    time.Duration   `json:"late_p99"` // by which tokens were told later than due, on the wall clock
	Handovers []handoverTimes `json:"handovers"`
}

func (s *modelServer) serve(q *fasthttp.RequestCtx) {
	switch string(q.Path()) {
	case "/v1/chat/completions", "/v1/completions":
		s.complete(q)
	case "/v1/models":
		q.SetContentType("application/json")
		fmt.Fprintf(q, `{"object":"list","data":[{"id":%q,"object":"model","created":1700000000,"owned_by":"vllm","root":%[1]q,"max_model_len":1048576}]}`, fake.Model)
	case "/version":
		q.SetContentType("application/json")
		q.SetBodyString(`{"version":"0.26.0"}`)
	case "/health":
	case "/metrics":
		s.metrics(q)
	case fake.CountsPath:
		answerJSON(q, fake.Counts{Prefill: s.prefill.Load(), Decode: s.decode.Load(), Other: s.other.Load()})
	case FleetPath:
		var r FleetReading
		s.clock.read(func(f *ModelFleet) { r = ReadingOf(f) })
		itl, late := s.clock.sums()
		r.Handovers, r.ITL99, r.Late99 = s.clock.handovers(), itl.P99, late.P99
		answerJSON(q, r)
	default:
		q.SetStatusCode(fasthttp.StatusNotFound)
	}
}

func answerJSON(q *fasthttp.RequestCtx, v any) {
	b, _ := json.Marshal(v) // numbers always marshal
	q.SetContentType("application/json")
	q.SetBody(b)
}

// metrics are those of vLLM's that routers read.
func (s *modelServer) metrics(q *fasthttp.RequestCtx) {
	q.SetContentType("text/plain; version=0.0.4")
	s.clock.read(func(f *ModelFleet) {
		e := f.engines[s.nth]
		const labels = `{engine="0",model_name="` + fake.Model + `"}`
		fmt.Fprintf(q, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running%s %d\n", labels, len(e.running))
		fmt.Fprintf(q, "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting%s %d\n", labels, len(e.waiting)+e.coming)
		fmt.Fprintf(q, "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc%s %g\n", labels, float64(e.pool.used)/float64(e.pool.blocks))
		fmt.Fprintf(q, "# TYPE vllm:prefix_cache_queries counter\nvllm:prefix_cache_queries_total%s %d\n", labels, e.asked)
		fmt.Fprintf(q, "# TYPE vllm:prefix_cache_hits counter\nvllm:prefix_cache_hits_total%s %d\n", labels, e.found)
	})
}

// complete answers one leg.
func (s *modelServer) complete(q *fasthttp.RequestCtx) {
	body := q.PostBody()
	seq, err := s.read(body, string(q.Request.Header.Peek("X-Request-Id")))
	if err != nil {
		refuseJSON(q, fasthttp.StatusBadRequest, err)
		return
	}
	switch seq.Leg {
	case PrefillLeg:
		s.prefill.Add(1)
	case DecodeLeg:
		s.decode.Add(1)
	default:
		s.other.Add(1)
	}
	if err := s.clock.submit(s.nth, seq); err != nil {
		refuseJSON(q, fasthttp.StatusBadRequest, err)
		return
	}
	r := &modelStream{server: s, seq: seq, chat: string(q.Path()) == "/v1/chat/completions", usage: fake.IsTrue(body, "include_usage")}
	streamed := fake.IsTrue(body, "stream") && seq.Leg != PrefillLeg
	for n := 0; n < seq.Answer && (n == 0 || !streamed); n++ { // a call without an answer is told by its status
		t, err := s.await(seq)
		if err != nil {
			s.clock.cancel(seq)
			refuseJSON(q, fasthttp.StatusInternalServerError, err)
			return
		}
		r.first = t
	}
	if streamed {
		q.SetContentType("text/event-stream; charset=utf-8")
		r.event(r.first)
		q.SetBodyStream(r, -1)
		return
	}
	q.SetContentType("application/json")
	s.answer(q, seq, r.chat)
}

// await returns the next token of a request.
func (s *modelServer) await(seq *ModelSeq) (ModelToken, error) {
	select {
	case t := <-seq.out:
		return t, t.Err
	case <-s.stopped:
		return ModelToken{}, errStopped
	}
}

func refuseJSON(q *fasthttp.RequestCtx, status int, err error) {
	q.SetStatusCode(status)
	answerJSON(q, map[string]any{"error": map[string]any{"message": err.Error(), "type": "BadRequestError", "param": nil, "code": status}})
}

// answer is a whole answer: of a prefill leg one token, and what decode needs to fetch its KV.
func (s *modelServer) answer(q *fasthttp.RequestCtx, seq *ModelSeq, chat bool) {
	text, kv := bytes.Repeat([]byte(" word"), seq.Answer), []byte("null")
	if seq.Leg == PrefillLeg {
		mode := "pull"
		if s.push {
			mode = "push"
		}
		kv = fmt.Appendf(nil, `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3]],"remote_engine_id":"%s","remote_request_id":"chatcmpl-%s","remote_host":"127.0.0.1","remote_port":%d,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":%d,"transfer_mode":%q,"remote_prefill_cached_tokens":%d}`,
			ModelEngineID(s.nth), seq.Key, s.port, seq.Prompt, mode, seq.cached)
	}
	choice, object := `"message":{"role":"assistant","content":%q}`, "chat.completion"
	if !chat {
		choice, object = `"text":%q`, "text_completion"
	}
	fmt.Fprintf(q, `{"id":"cmpl-bench","object":%q,"created":1700000000,"model":%q,"choices":[{"index":0,`+choice+`,"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d},"kv_transfer_params":%s}`,
		object, fake.Model, text, seq.Prompt, seq.Prompt+seq.Answer, seq.Answer, kv)
}

// ModelEngineID is the id that an engine tells.
func ModelEngineID(nth int) string { return fmt.Sprintf("7d6c0000-0000-4000-8000-%012d", nth) }

// ReadingOf sums up what engines have done.
func ReadingOf(f *ModelFleet) FleetReading {
	r := FleetReading{Prompts: f.prompts, Possible: f.possible}
	for _, e := range f.engines {
		r.Found += e.found
		r.Steps = append(r.Steps, e.steps)
	}
	return r
}
