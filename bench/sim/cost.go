package sim

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"time"
)

// Costs is what a modelled engine's work takes: one model on one kind of engine. costs.json has them, with where each number
// is from and how it was derived.
type Costs struct {
	Name       string   `json:"name"`
	Source     string   `json:"source"`
	Derivation []string `json:"derivation"`

	Step           float64 `json:"step_us"`            // of any step: reading the weights
	Prefill        float64 `json:"prefill_us"`         // a prompt token that is computed
	Decode         float64 `json:"decode_us"`          // a request that gets its next token
	PrefillContext float64 `json:"prefill_context_ns"` // a prompt token that is computed, for each token before it
	DecodeContext  float64 `json:"decode_context_ns"`  // a request that gets its next token, for each token before it
	Admit          float64 `json:"admit_us"`           // until the scheduler has a request: reading and tokenising
	AdmitToken     float64 `json:"admit_token_us"`     // the same, a prompt token
	KVBytes        int     `json:"kv_bytes"`           // a token
	Link           float64 `json:"link_gbs"`           // 1e9 bytes a second between two engines; an engine has one link
	LinkSetup      float64 `json:"link_us"`            // a transfer, whatever its size
	Blocks         int     `json:"blocks"`             // of blockTokens tokens, that an engine has for KV
}

// BlockTokens is the size of a KV block, in tokens: vLLM's default.
const BlockTokens = 16

//go:embed costs.json
var costsJSON []byte

// CostsOf returns the costs with a name.
func CostsOf(name string) (Costs, error) {
	var all []Costs
	if err := json.Unmarshal(costsJSON, &all); err != nil {
		return Costs{}, fmt.Errorf("bench: costs.json: %w", err)
	}
	for _, c := range all {
		if c.Name == name {
			return c, nil
		}
	}
	return Costs{}, fmt.Errorf("bench: no costs are called %q", name)
}

// micros is a number of microseconds.
func micros(us float64) time.Duration { return time.Duration(us * float64(time.Microsecond)) }

// Part is what a step does for one request: it computes n tokens that stand behind context others.
type Part struct {
	seq     *ModelSeq
	N       int
	Context int
	Prefill bool
}

// StepTime is what a step with these parts takes.
func (c Costs) StepTime(parts []Part) time.Duration {
	us := c.Step
	for _, p := range parts {
		n, context := float64(p.N), float64(p.Context)
		if p.Prefill {
			us += n*c.Prefill + (n*context+n*(n-1)/2)*c.PrefillContext/1e3
		} else {
			us += c.Decode + context*c.DecodeContext/1e3
		}
	}
	return micros(us)
}

// admit is what it takes until the scheduler has a prompt of so many tokens.
func (c Costs) admit(tokens int) time.Duration { return micros(c.Admit + float64(tokens)*c.AdmitToken) }

// move is what it takes to move the KV of so many tokens from one engine to another.
func (c Costs) move(tokens int) time.Duration {
	return micros(c.LinkSetup + float64(tokens)*float64(c.KVBytes)/(c.Link*1e3))
}
