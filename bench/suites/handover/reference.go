package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
	"pdrouter/bench/sim"
	"pdrouter/bench/suites/pair"
	"pdrouter/bench/suites/plane"
	"pdrouter/kvplane"
	"pdrouter/metadata/client"
)

// ReferenceSuite measures a hand-off over pdrouter's own plane, with KV that is really moved, between engines whose
// computing is modelled.
func ReferenceSuite() harness.Suite {
	return harness.Suite{
		Name:  "handover/reference",
		Brief: "a request of two legs over pdrouter's plane, reference engines with modelled costs",
		Run:   measureReference,
	}
}

const referenceCosts = "llama-3.1-8b-h100"

// referencePrompt is what the model says of a prompt of handoverPrompt tokens.
func referencePrompt() time.Duration {
	c, _ := sim.CostsOf(referenceCosts) // embedded; TestReferenceCosts
	return c.StepTime([]sim.Part{{N: handoverPrompt, Prefill: true}})
}

// referenceStep is what it says of a step with one answer behind such a prompt.
func referenceStep() time.Duration {
	c, _ := sim.CostsOf(referenceCosts)
	return c.StepTime([]sim.Part{{N: 1, Context: handoverPrompt}}).Round(time.Microsecond)
}

// perToken is a prompt's cost as the reference engine has it.
func perToken() time.Duration { return (referencePrompt() / handoverPrompt).Round(time.Microsecond) }

// modelled are an engine's flags for these costs.
func modelled() []string {
	return []string{"--prefill-us-per-token", strconv.FormatInt(perToken().Microseconds(), 10), "--decode-us-per-step", strconv.FormatInt(referenceStep().Microseconds(), 10)}
}

func measureReference(ctx context.Context, r *harness.Run) error {
	cpus, err := report.AllowedCPUs()
	if err != nil {
		return err
	}
	place := harness.PlaceOn(harness.OneCPU, cpus)
	if place.Target != "" {
		if err := harness.PinSelf(ctx, place.Target); err != nil {
			return err
		}
	}
	for _, which := range pair.PairTransports {
		name := which + " 1P1D"
		if !r.Wants(name) {
			continue
		}
		cannot := ""
		if err := plane.NoNIXL(); which == "nixl" && err != nil {
			cannot = err.Error()
		}
		if err := reference(ctx, r, name, which, place, cannot); err != nil {
			return err
		}
	}
	return nil
}

// reference measures one transport.
func reference(ctx context.Context, r *harness.Run, name, which string, place harness.Place, cannot string) (err error) {
	c := harness.Comparison{Name: name, Where: place.Where, Metrics: []harness.Metric{
		{What: "behind the prompt", Unit: "ms", Goals: []report.Goal{{Beside: "direct", Times: 1, Plus: 0.3}}},
		{What: "TTFT", Unit: "ms"},
	}}
	if cannot != "" {
		for _, of := range []string{report.Us, "direct", "one engine"} {
			c.Systems = append(c.Systems, harness.System{Of: of, Cannot: cannot})
		}
		return r.Compare(ctx, c)
	}
	f, err := pair.OpenGatewayFleet(ctx, r.Config, which, 1, pair.FleetShape{Cpus: place.Target, Engine: modelled()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	alone, err := alone(ctx, f)
	if err != nil {
		return err
	}
	defer alone.Stop()
	hand, err := splitByHand(ctx, f)
	if err != nil {
		return err
	}
	c.Systems = []harness.System{
		streamsOf(f, report.Us, 1, through(f.Gateway.Address, pair.CompletionsPath)),
		streamsOf(f, "direct", 1, hand),
		streamsOf(f, "one engine", 0, through(alone.Address, pair.CompletionsPath)),
	}
	return referenceComparison(ctx, r, f, c)
}

// promptTokens are the tokens of prompts at decode that came from prefill, and those that it has computed itself.
func promptTokens(ctx context.Context, f *pair.GatewayFleet) (received, computed int, err error) {
	_, said, err := harness.Get(ctx, "http://"+f.Engines[1].Address+"/metrics")
	if err != nil {
		return 0, 0, err
	}
	for source, into := range map[string]*int{"external_kv_transfer": &received, "local_compute": &computed} {
		const name = "refengine_prompt_tokens_by_source_total"
		_, behind, _ := strings.Cut(string(said), fmt.Sprintf("\n%s{source=%q} ", name, source))
		if _, err := fmt.Sscan(behind, into); err != nil {
			return 0, 0, fmt.Errorf("%w: decode's metrics have no %s of %s", load.ErrVoid, name, source)
		}
	}
	return received, computed, nil
}

// referenceComparison voids the run unless decode has had the KV of each prompt from prefill, and has computed none itself. What it
// has had before is the handshake's.
func referenceComparison(ctx context.Context, r *harness.Run, f *pair.GatewayFleet, c harness.Comparison) error {
	before, _, err := promptTokens(ctx, f)
	if err != nil {
		return err
	}
	if err := r.Compare(ctx, c); err != nil {
		return err
	}
	received, computed, err := promptTokens(ctx, f)
	if want := f.Split * handoverPrompt; err == nil && (received-before != want || computed != 0) {
		err = fmt.Errorf("%w: decode has had %d tokens of prompts from prefill and has computed %d; want %d and none", load.ErrVoid, received-before, computed, want)
	}
	return err
}

// alone starts an engine that does both stages, with the fleet's costs.
func alone(ctx context.Context, f *pair.GatewayFleet) (*harness.Child, error) {
	argv := append([]string{f.Cfg.Binary, "mock-engine", "--name", "alone", "--role", "both", "--model", fake.Model}, f.Shape.Engine...)
	free, err := harness.FreeAddresses(1)
	if err != nil {
		return nil, err
	}
	c, err := harness.Spawn(ctx, "the engine that is alone", f.Shape.Cpus, false, false, append(argv, "--listen", free[0])...)
	if err != nil {
		return nil, err
	}
	c.Address = free[0]
	if err := c.Healthy(ctx, 30*time.Second, time.Millisecond); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// streamsOf is a system: as many streams as fit into a round, each with its own prompt and so many hand-offs. Its figures are
// medians.
func streamsOf(f *pair.GatewayFleet, of string, split int, ask handoverClient) harness.System {
	return harness.System{Of: of, Round: func(ctx context.Context, d time.Duration) (harness.Sample, error) {
		var ttft []float64
		for end := time.Now().Add(d); time.Now().Before(end) || len(ttft) == 0; {
			begun, first, err := ask(ctx, prompt(f))
			if err != nil {
				return harness.Sample{}, err
			}
			f.Split += split
			ttft = append(ttft, report.Millis(first.Sub(begun)))
		}
		mid := report.SpreadOf(ttft).Median
		return harness.Sample{Figures: []float64{mid - report.Millis(handoverPrompt*perToken()), mid}, Done: len(ttft)}, nil
	}}
}

// prompt is a request whose prompt no engine has seen; a token is a byte, and the first stands before all text.
func prompt(f *pair.GatewayFleet) []byte {
	f.Asked++
	head := fmt.Sprintf("%d ", f.Asked)
	return fmt.Appendf(nil, `{"model":%q,"stream":true,"max_tokens":%d,"ignore_eos":true,"prompt":"%s"}`,
		fake.Model, handoverAnswer, head+strings.Repeat("abc ", handoverPrompt)[:handoverPrompt-1-len(head)])
}

// splitByHand makes both legs itself, at once, as the gateway does of connector kvplane.
func splitByHand(ctx context.Context, f *pair.GatewayFleet) (handoverClient, error) {
	c, err := client.New(client.Config{URL: "http://" + f.Agents}, client.TokenFile(filepath.Join(f.Dir, f.Engines[0].Name+".token")), nil, nil)
	if err != nil {
		return nil, err
	}
	var params [2]string // prefill's leg, decode's
	for i, peer := range []*pair.GatewayEngine{f.Engines[1], f.Engines[0]} {
		records, err := c.Engine(ctx, peer.Name)
		if err != nil {
			return nil, err
		}
		who, err := json.Marshal(map[string]any{"engine": peer.Name, "generation": records[0].Generation})
		if err != nil {
			return nil, err
		}
		params[i] = fmt.Sprintf(`"do_remote_decode":%t,"do_remote_prefill":%t,"valid_ms":30000,"peer":%s`, i == 0, i == 1, who)
	}
	leg := func(i int, id string, body []byte) []byte {
		return append(fmt.Appendf(nil, `{"kv_transfer_params":{%s,"transfer_id":%q},`, params[i], id), body[1:]...)
	}
	decode := through(f.Engines[1].Address, pair.CompletionsPath)
	prefill := "http://" + f.Engines[0].Address + pair.CompletionsPath
	return func(ctx context.Context, body []byte) (begun, first time.Time, err error) {
		id := kvplane.NewTransferID().String()
		begun = time.Now()
		prefilled := make(chan error, 1)
		go func() {
			plain := strings.Replace(string(body), fmt.Sprintf(`"stream":true,"max_tokens":%d`, handoverAnswer), `"max_tokens":1`, 1)
			prefilled <- postWhole(ctx, prefill, string(leg(0, id, []byte(plain))))
		}()
		_, first, err = decode(ctx, leg(1, id, body))
		return begun, first, errors.Join(err, <-prefilled)
	}, nil
}

// postWhole sends a body and reads an answer of status 200.
func postWhole(ctx context.Context, url, body string) error {
	answer, err := harness.Post(ctx, url, []byte(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%w: status %d: %s", load.ErrVoid, answer.StatusCode, harness.FirstLine(string(said)))
	}
	return err
}
