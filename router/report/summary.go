package report

import (
	"fmt"
	"slices"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/firsttoken"
	"pdrouter/router/trace"
)

// Phases are the parts of a request's life, each measured from its arrival; 0 means that it was not reached.
type Phases struct {
	Admit      time.Duration `json:"admit"`       // head and body checked, caller known
	Queue      time.Duration `json:"queue"`       // the end of the wait for a place with the engines
	Retry      time.Duration `json:"retry"`       // the end of attempts that failed, and of waits for an engine
	Plan       time.Duration `json:"plan"`        // engines chosen, last attempt
	Pair       time.Duration `json:"pair"`        // the pair is known to each other, last attempt
	Prefill    time.Duration `json:"prefill"`     // prefill has answered
	Transfer   time.Duration `json:"transfer"`    // every consumer has all its blocks (kvplane)
	FirstToken time.Duration `json:"first_token"` // the first event or the whole answer is here: decode's, or prefill's token (first_token)
	Joined     time.Duration `json:"joined"`      // decode's first event is here, after prefill's token
	Total      time.Duration `json:"total"`       // the end
}

// DecodeFirst is when decode's first event or whole answer was here.
func (p *Phases) DecodeFirst() time.Duration { return max(p.FirstToken, p.Joined) }

// Transfer is what the KV plane reported of one transfer.
type Transfer struct {
	Blocks  int               `json:"blocks"`  // blocks that the consumers have whole, summed over their ranks
	Bytes   int64             `json:"bytes"`   // bytes written, over all producers
	Counted map[string]string `json:"counted"` // consumer rank "dp/pp/tp" to producers that have written "k/n", once it is ready or has failed
	Ready   bool              `json:"ready"`   // every consumer reported that it has all its blocks
	Failed  string            `json:"failed"`  // why a consumer does not get its blocks; "" if there was none
}

// Shadow is what a second policy would have chosen, without effect.
type Shadow struct {
	Result  string `json:"result"` // same, other_prefill, other_decode, other_path (split or not) or none
	Prefill string `json:"prefill"`
	Decode  string `json:"decode"`
	Why     string `json:"why"`
}

// Move is a move of a conversation's KV that a request waited for, or would have if migration.mode were enabled. Times are in nanoseconds.
type Move struct {
	From      string        `json:"from"`
	To        string        `json:"to"`
	Tokens    int           `json:"tokens"`
	Predicted time.Duration `json:"predicted"` // what it was to take
	Patience  time.Duration `json:"patience"`  // for how long it was worth waiting for
	Took      time.Duration `json:"took"`      // for how long the request has waited
	Result    string        `json:"result"`
	Why       string        `json:"why"` // its price, for people
}

// EarlierMove is a move of the KV of a request's conversation from one engine to another, or what became of it.
type EarlierMove struct {
	Reason  string  `json:"reason"` // why it was moved: as migration.uses
	Result  string  `json:"result"` // moved, or why it was not
	From    string  `json:"from"`
	To      string  `json:"to"`
	Tokens  int     `json:"tokens"`
	Seconds float64 `json:"seconds"`
}

// Summary is what is known of one finished request. It feeds the log line, the metrics and /requests, and holds
// neither prompt nor answer.
type Summary struct {
	RequestID string   `json:"request_id"` // the client's, or made here
	Model     string   `json:"model"`
	Route     string   `json:"route"`
	Stream    bool     `json:"stream"`
	Removed   bool     `json:"removed"`                     // the client sent kv_transfer_params, which were dropped
	Leaked    bool     `json:"leaked"`                      // an engine may hold leaked KV until a lease ends
	TokenIDs  TokenIDs `json:"token_ids"`                   // what became of the prompt's token ids in the last attempt
	Predicted float32  `json:"predicted_seconds,omitempty"` // from the choice of engines to the first token, as the policy cost predicted it; of streams
	Status    int32    `json:"status"`                      // of the answer that was sent; 499 if the client left before one
	// Of a split request: how many of its prompt's tokens decode says it did not compute. It should have received all. Below 0: it does not say.
	DecodeCachedTokens int32            `json:"-"`
	Outcome            dispatch.Outcome `json:"outcome"`
	CachedBy           CachedBy         `json:"cached_by"` // by what the next was predicted
	// From which engine the first token came in the last attempt, where models[].first_token is prefill.
	FirstToken firsttoken.Result `json:"first_token"`
	Late       bool              `json:"late,omitempty"` // from prefill's answer to the first token it took more than three times as long as usual for the pair
	// What was predicted of the engine that computes the prompt, in the last attempt; 0 if the policy does not look at that.
	PredictedCachedTokens int32        `json:"predicted_cached_tokens"`
	Reason                string       `json:"reason"`           // the policy's reason, or why the request failed
	Why                   string       `json:"why"`              // why these engines, for people
	Waited                *string      `json:"waited,omitempty"` // why it waited for a place, for people; nil if it did not
	Shadow                *Shadow      `json:"shadow,omitempty"` // what policy.shadow would have chosen for the last attempt
	Prefill               string       `json:"prefill"`          // engine names; "" if none
	Decode                string       `json:"decode"`
	Move                  *Move        `json:"move,omitempty"` // the move of the conversation that it has waited for; nil if there was none
	Attempts              int16        `json:"attempts"`
	Continued             int16        `json:"continued"`             // how often another decode engine went on with the stream
	CountedCachedTokens   int32        `json:"counted_cached_tokens"` // what the engine has counted of which the cached tokens were predicted; below 0 if it does not say
	NotContinued          string       `json:"not_continued"`         // why none did, where the policy wanted it; "" if it was not needed
	TransferID            string       `json:"transfer_id"`           // of the last attempt; 32 hexadecimal digits
	Phases                Phases       `json:"phases"`
	PromptTokens          int32        `json:"prompt_tokens"` // as the engine counted them; 0 if unknown
	estimates             estimates    // of the last attempt, beside a number of four bytes: a request under way has no more room
	CachedTokens          int32        `json:"cached_tokens"` // as prefill counted them; 0 if unknown
	OutputTokens          int32        `json:"output_tokens"`
	Subject               string       `json:"subject"` // who called; "" if the router is open
	Transfer              *Transfer    `json:"books,omitempty"`
	EarlierMove           *EarlierMove `json:"conversation_move,omitempty"` // the last one since the conversation's turn before; nil: there was none
	Arrived               time.Time    `json:"arrived_at"`
	TraceID               *trace.ID    `json:"trace_id,omitempty"` // nil if the request is not sampled
	// Failures are the attempts that failed, in order. With Parts, each has its own.
	Failures []Failure `json:"failures,omitempty"`
	// Parts are the choices of a request that were served separately. Then the engines and the transfer above are those of the first.
	// Empty if the request was served as one.
	Parts []Part `json:"parts,omitempty"`
}

// CachedBy is by what it was predicted how many tokens of a prompt an engine has cached.
type CachedBy uint8

const (
	CachedNotLookedAt CachedBy = iota // the policy does not look at that
	CachedByEvents                    // the engine publishes its blocks, and the prompt's token ids are known
	CachedByEstimate                  // it was sent prompts with the same beginning
	CachedByCount
)

var cachedByNames = [CachedByCount]string{"", "events", "estimate"}

func (c CachedBy) String() string { return cachedByNames[c] }

// MarshalText returns the name.
func (c CachedBy) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads the name.
func (c *CachedBy) UnmarshalText(name []byte) error {
	i := slices.Index(cachedByNames[:], string(name))
	if i < 0 {
		return fmt.Errorf("cached_by %q is unknown", name)
	}
	*c = CachedBy(i)
	return nil
}

// TokenIDs is what became of the prompt's token ids between prefill and decode.
type TokenIDs uint8

const (
	TokensNone        TokenIDs = iota // the connector forwards none, or the request was not split
	TokensForwarded                   // decode was sent those that prefill has answered
	TokensOff                         // retokenize_on_decode is set
	TokensRoute                       // engines take them only with a chat
	TokensMedia                       // the prompt has images, sounds or videos
	TokensPromptText                  // the client asks for the rendered prompt
	TokensRefused                     // one of the engines rejects the members for them
	TokensNotReported                 // prefill's answer has none
	TokensTooLarge                    // prefill's answer exceeds limits.answer with them
	TokenIDsCount
)

var tokenIDsNames = [TokenIDsCount]string{"", "forwarded", "off", "route", "media", "prompt_text", "refused", "not_reported", "too_large"}

func (t TokenIDs) String() string { return tokenIDsNames[t] }

// MarshalText returns the name.
func (t TokenIDs) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads the name.
func (t *TokenIDs) UnmarshalText(name []byte) error {
	i := slices.Index(tokenIDsNames[:], string(name))
	if i < 0 {
		return fmt.Errorf("token_ids %q is unknown", name)
	}
	*t = TokenIDs(i)
	return nil
}

// Part is what is known of one choice of a request whose choices were served separately.
type Part struct {
	Prefill    string    `json:"prefill"`
	Decode     string    `json:"decode"`
	Attempts   int16     `json:"attempts"`
	TransferID string    `json:"transfer_id"` // of the last attempt
	Reason     string    `json:"reason"`
	Transfer   *Transfer `json:"books,omitempty"`

	Failures []Failure `json:"failures,omitempty"`
}

// Failure is one failed attempt at one engine.
type Failure struct {
	Attempt int    `json:"attempt"` // from 1
	Engine  string `json:"engine"`
	Reason  string `json:"reason"`
	Status  int    `json:"status,omitempty"` // of the engine's answer; 0 if there was none
	Cause   string `json:"cause"`            // what was wrong
	Answer  string `json:"answer,omitempty"` // the first bytes of the engine's error answer, without credentials

	Message string        `json:"-"` // what the client may see of it
	Rest    time.Duration `json:"-"` // for how long the engine asked for no requests
}

// Later sets each phase to the later one of both.
func (p *Phases) Later(o Phases) {
	for _, d := range []struct{ to, of *time.Duration }{
		{&p.Retry, &o.Retry}, {&p.Plan, &o.Plan}, {&p.Pair, &o.Pair}, {&p.Prefill, &o.Prefill}, {&p.Transfer, &o.Transfer}, {&p.FirstToken, &o.FirstToken}, {&p.Joined, &o.Joined},
	} {
		*d.to = max(*d.to, *d.of)
	}
}
