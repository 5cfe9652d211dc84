package report

import "time"

// Stage is a part of a request's life. Stages follow each other without a gap, each from the end of the one before.
type Stage uint8

// The stages. Up to StageFirstToken they add up to the time to the first token. What is in one stage cannot be told apart from outside the
// engines: see docs/operations.md.
const (
	StageAdmit      Stage = iota // head and body are read and checked
	StageQueue                   // the wait for a place with the engines
	StageRetry                   // attempts that failed, and waits for an engine that may come back
	StagePlan                    // the choice of engines
	StagePair                    // the handshake of the pair
	StagePrefill                 // prefill's queue, and its computing of the prompt
	StageTransfer                // the KV that comes after that; where the plane reports it
	StageFirstToken              // decode's queue and its first step, and what the stages before do not show
	StageJoin                    // the KV, decode's queue and its first step, while the client has prefill's token
	StageStream                  // the rest of the answer
	StageCount
)

func (s Stage) String() string {
	return [StageCount]string{"admit", "queue", "retry", "plan", "pair", "prefill", "transfer", "first_token", "join", "stream"}[s]
}

// Stages returns the duration of each stage; below 0 where a stage was not reached. A stage that ends within another, such as a transfer that is
// over before prefill answers, has no duration of its own. So the sum up to StageFirstToken is FirstToken.
func (p *Phases) Stages() (out [StageCount]time.Duration) {
	out = [...]time.Duration{p.Admit, p.Queue, p.Retry, p.Plan, p.Pair, p.Prefill, p.Transfer, p.FirstToken, p.Joined, p.Total}
	last := time.Duration(0)
	for i, at := range out {
		if out[i] = -1; at <= 0 {
			continue
		}
		if p.FirstToken > 0 && Stage(i) < StageFirstToken { // what is reported later did not delay the token
			at = min(at, p.FirstToken)
		}
		out[i] = max(0, at-last)
		last = max(last, at)
	}
	return out
}

// Shown is a finished request as /requests shows it.
type Shown struct {
	Summary
	Stages map[string]float64 `json:"stage_seconds"` // those that were reached
	First  []FirstTokenPart   `json:"first_token_parts,omitempty"`
	// HandOff is what decode has received of the prompt; nil where the request was not split, or decode does not say.
	HandOff *HandOff `json:"hand_off,omitempty"`
}

// HandOff is how many of a prompt's tokens decode should have received, and how many it says that it did not have to compute.
type HandOff struct {
	Expected int32 `json:"expected_tokens"`
	Cached   int32 `json:"counted_cached_tokens"`
}

// Shown returns the request with the seconds of its stages.
func (s *Summary) Shown() Shown {
	out := Shown{Summary: *s, Stages: map[string]float64{}, First: s.FirstTokenParts()}
	if s.Prefill != "" && s.DecodeCachedTokens >= 0 && s.PromptTokens > 0 {
		out.HandOff = &HandOff{s.PromptTokens, s.DecodeCachedTokens}
	}
	for i, took := range s.Phases.Stages() {
		if took >= 0 {
			out.Stages[Stage(i).String()] = took.Seconds()
		}
	}
	return out
}
