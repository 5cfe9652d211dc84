package bench

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

	"pdrouter/kvplane"
	"pdrouter/metadata/client"
)

// referenceSuite measures a hand-over over pdrouter's own plane, with KV that is really moved, between engines whose
// computing is modelled.
func referenceSuite() Suite {
	return Suite{
		Name:  "handover/reference",
		Brief: "a request of two legs over pdrouter's plane, reference engines with modelled costs",
		run:   measureReference,
	}
}

// completionsPath takes a prompt as it is.
const completionsPath = "/v1/completions"

const referenceCosts = "llama-3.1-8b-h100"

// referencePrompt is what the model says of a prompt of handoverPrompt tokens.
func referencePrompt() time.Duration {
	c, _ := costsOf(referenceCosts) // embedded; TestReferenceCosts
	return c.step([]part{{n: handoverPrompt, prefill: true}})
}

// referenceStep is what it says of a step with one answer behind such a prompt.
func referenceStep() time.Duration {
	c, _ := costsOf(referenceCosts)
	return c.step([]part{{n: 1, context: handoverPrompt}}).Round(time.Microsecond)
}

// perToken is a prompt's cost as the reference engine has it.
func perToken() time.Duration { return (referencePrompt() / handoverPrompt).Round(time.Microsecond) }

// modelled are an engine's flags for these costs.
func modelled() []string {
	return []string{"--prefill-us-per-token", strconv.FormatInt(perToken().Microseconds(), 10), "--decode-us-per-step", strconv.FormatInt(referenceStep().Microseconds(), 10)}
}

func measureReference(ctx context.Context, r *Run) error {
	cpus, err := allowedCPUs()
	if err != nil {
		return err
	}
	place := placeOn(oneCPU, cpus)
	if place.target != "" {
		if err := pinSelf(ctx, place.target); err != nil {
			return err
		}
	}
	for _, which := range pairTransports {
		name := which + " 1P1D"
		if !r.wants(name) {
			continue
		}
		cannot := ""
		if err := noNIXL(); which == "nixl" && err != nil {
			cannot = err.Error()
		}
		if err := r.reference(ctx, name, which, place, cannot); err != nil {
			return err
		}
	}
	return nil
}

// reference measures one transport.
func (r *Run) reference(ctx context.Context, name, which string, place place, cannot string) (err error) {
	c := contest{name: name, where: place.where, metrics: []metric{
		{what: "behind the prompt", unit: "ms", goals: []Goal{{Beside: "direct", Times: 1, Plus: 0.3}}},
		{what: "TTFT", unit: "ms"},
	}}
	if cannot != "" {
		for _, of := range []string{us, "direct", "one engine"} {
			c.contenders = append(c.contenders, contender{of: of, cannot: cannot})
		}
		return r.contest(ctx, c)
	}
	f, err := openGatewayFleet(ctx, r.Config, which, 1, fleetShape{cpus: place.target, engine: modelled()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	alone, err := f.alone(ctx)
	if err != nil {
		return err
	}
	defer alone.stop()
	hand, err := f.byHand(ctx)
	if err != nil {
		return err
	}
	c.contenders = []contender{
		f.streamsOf(us, 1, through(f.gateway.address, completionsPath)),
		f.streamsOf("direct", 1, hand),
		f.streamsOf("one engine", 0, through(alone.address, completionsPath)),
	}
	return r.referenceContest(ctx, f, c)
}

// promptTokens are the tokens of prompts at decode that came from prefill, and those that it has computed itself.
func (f *gatewayFleet) promptTokens(ctx context.Context) (received, computed int, err error) {
	_, said, err := get(ctx, "http://"+f.engines[1].address+"/metrics")
	if err != nil {
		return 0, 0, err
	}
	for source, into := range map[string]*int{"external_kv_transfer": &received, "local_compute": &computed} {
		const name = "refengine_prompt_tokens_by_source_total"
		_, behind, _ := strings.Cut(string(said), fmt.Sprintf("\n%s{source=%q} ", name, source))
		if _, err := fmt.Sscan(behind, into); err != nil {
			return 0, 0, fmt.Errorf("%w: decode's metrics have no %s of %s", errVoid, name, source)
		}
	}
	return received, computed, nil
}

// referenceContest voids the run unless decode has had the KV of each prompt from prefill, and has computed none itself. What it
// has had before is the handshake's.
func (r *Run) referenceContest(ctx context.Context, f *gatewayFleet, c contest) error {
	before, _, err := f.promptTokens(ctx)
	if err != nil {
		return err
	}
	if err := r.contest(ctx, c); err != nil {
		return err
	}
	received, computed, err := f.promptTokens(ctx)
	if want := f.split * handoverPrompt; err == nil && (received-before != want || computed != 0) {
		err = fmt.Errorf("%w: decode has had %d tokens of prompts from prefill and has computed %d; want %d and none", errVoid, received-before, computed, want)
	}
	return err
}

// alone starts an engine that does both stages, with the fleet's costs.
func (f *gatewayFleet) alone(ctx context.Context) (*child, error) {
	argv := append([]string{f.cfg.Binary, "mock-engine", "--name", "alone", "--role", "both", "--model", benchModel}, f.shape.engine...)
	free, err := freeAddresses(1)
	if err != nil {
		return nil, err
	}
	c, err := spawn(ctx, "the engine that is alone", f.shape.cpus, false, false, append(argv, "--listen", free[0])...)
	if err != nil {
		return nil, err
	}
	c.address = free[0]
	if err := c.healthy(ctx, 30*time.Second, time.Millisecond); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// streamsOf is a contender: as many streams as fit into a round, each with its own prompt and so many hand-overs. Its figures are
// medians.
func (f *gatewayFleet) streamsOf(of string, split int, ask handoverClient) contender {
	return contender{of: of, round: func(ctx context.Context, d time.Duration) (sample, error) {
		var ttft []float64
		for end := time.Now().Add(d); time.Now().Before(end) || len(ttft) == 0; {
			begun, first, err := ask(ctx, f.prompt())
			if err != nil {
				return sample{}, err
			}
			f.split += split
			ttft = append(ttft, millis(first.Sub(begun)))
		}
		mid := spread(ttft).Median
		return sample{figures: []float64{mid - millis(handoverPrompt*perToken()), mid}, done: len(ttft)}, nil
	}}
}

// prompt is a request whose prompt no engine has seen; a token is a byte, and the first stands before all text.
func (f *gatewayFleet) prompt() []byte {
	f.asked++
	head := fmt.Sprintf("%d ", f.asked)
	return fmt.Appendf(nil, `{"model":%q,"stream":true,"max_tokens":%d,"ignore_eos":true,"prompt":"%s"}`,
		benchModel, handoverAnswer, head+strings.Repeat("abc ", handoverPrompt)[:handoverPrompt-1-len(head)])
}

// byHand makes both legs itself, at once, as the gateway does of connector kvplane.
func (f *gatewayFleet) byHand(ctx context.Context) (handoverClient, error) {
	c, err := client.New(client.Config{URL: "http://" + f.agents}, client.TokenFile(filepath.Join(f.dir, f.engines[0].name+".token")), nil, nil)
	if err != nil {
		return nil, err
	}
	var params [2]string // prefill's leg, decode's
	for i, peer := range []*gatewayEngine{f.engines[1], f.engines[0]} {
		records, err := c.Engine(ctx, peer.name)
		if err != nil {
			return nil, err
		}
		who, err := json.Marshal(map[string]any{"engine": peer.name, "generation": records[0].Generation})
		if err != nil {
			return nil, err
		}
		params[i] = fmt.Sprintf(`"do_remote_decode":%t,"do_remote_prefill":%t,"valid_ms":30000,"peer":%s`, i == 0, i == 1, who)
	}
	leg := func(i int, id string, body []byte) []byte {
		return append(fmt.Appendf(nil, `{"kv_transfer_params":{%s,"transfer_id":%q},`, params[i], id), body[1:]...)
	}
	decode := through(f.engines[1].address, completionsPath)
	prefill := "http://" + f.engines[0].address + completionsPath
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
	answer, err := post(ctx, url, []byte(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%w: status %d: %s", errVoid, answer.StatusCode, firstLine(string(said)))
	}
	return err
}
