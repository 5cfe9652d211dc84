package refengine

import (
	"errors"
	"time"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// How a sequence that gives no answer ends.
var (
	ErrTransfer = errors.New("refengine: transfer failed")
	ErrStopping = errors.New("refengine: engine is stopping")
	ErrTooLong  = errors.New("refengine: prompt and answer do not fit")
	ErrLeft     = errors.New("refengine: nobody wants the answer")
	ErrLeg      = errors.New("refengine: leg not served")
	ErrMemory   = errors.New("refengine: KV memory failed")
)

// Handoff names the transfer that a leg is part of.
type Handoff struct {
	ID    kvplane.TransferID
	Peer  metadata.Incarnation // the engine of the other leg
	Valid time.Duration        // how long the other leg may take to come; default 30 s

	Ticket string   // the gateway's; "": it gave none
	digest [16]byte // of the ticket, once it was accepted
}

// Request is one sequence to compute.
type Request struct {
	Tokens    []int32 // the prompt; at least one, each below the vocabulary's size
	MaxTokens int     // of the answer, at least 1
	MinTokens int     // of the answer, before the model may end it
	IgnoreEnd bool    // the model may not end it
	Salt      string  // sequences of different salts share no cached blocks
	Adapter   string  // one of Config.Adapters; "": none
	Leg       Leg
	Handoff   Handoff // prefill and decode legs
	Name      string  // export legs: what the importing engine calls the request
	From      Remote  // import legs
}

// Output is one step of an answer. The last one has a Finish or an Err.
type Output struct {
	Token  int32 // -1: none, with the end of the text
	Finish Finish
	Err    error
}

// Finish says why an answer is over: FinishNone while it is not.
type Finish string

// The ends of an answer, as the OpenAI routes call them.
const (
	FinishNone   Finish = ""
	FinishStop   Finish = "stop"
	FinishLength Finish = "length"
)

type state uint8

const (
	waiting   state = iota // for blocks
	receiving              // its prompt's KV from another engine
	running
	hanging // a fault: for ever
	done
)

// Times are when a sequence went on. What was not reached is zero.
type Times struct {
	Leg       Leg
	Submitted time.Time
	Received  time.Time // its prompt's KV came from another engine
	Began     time.Time // the first step that it is in
	First     time.Time // that step's token
}

// Sequence is a request in an engine. Only the engine's goroutine touches what is not the channel.
type Sequence struct {
	req Request
	out chan Output // never blocks the engine: it holds a whole answer

	state    state
	tokens   []int32 // prompt and answer
	table    []int32
	hashes   []blockHash
	computed int  // positions whose KV is in memory
	stored   bool // the prompt's KV came from elsewhere: the first step only asks the last token's query; of an import it computes that token
	cached   int  // prompt positions found in the prefix cache
	external int  // prompt positions whose KV came from another engine, besides those
	faults   []Fault
	late     bool // a fault has held up its KV
	times    Times
	exported *remoteBody // export legs: what the answer says; written before the last Output
}

// Outputs yields the answer, token by token. It is not closed: the last Output says that it is the last.
func (s *Sequence) Outputs() <-chan Output { return s.out }

// Cached returns how many tokens of the prompt were not computed: found in the prefix cache, or received from another engine, as stock vLLM
// counts them. It may be called after the first Output.
func (s *Sequence) Cached() int { return s.cached + s.external }

// parent is the hash of its last full block that is known, after which the next one follows.
func (s *Sequence) parent() blockHash {
	if n := len(s.hashes); n > 0 {
		return s.hashes[n-1]
	}
	return root(s.req.Salt)
}

// answered is the number of tokens of the answer so far.
func (s *Sequence) answered() int { return len(s.tokens) - len(s.req.Tokens) }

// work is what the sequence asks of the next step, at most budget prompt tokens; ok is false if budget is too small.
func (s *Sequence) work(m *Model, budget int) (it item, ok bool) {
	if s.stored {
		last := len(s.tokens) - 1
		return item{table: s.table, first: last, stored: s.req.Leg != ImportLeg, states: []hidden{m.embed(s.tokens[last], last)}}, true
	}
	n := len(s.tokens) - s.computed
	if s.answered() == 0 {
		n = min(n, budget)
	}
	if n == 0 {
		return item{}, false
	}
	it = item{table: s.table, first: s.computed, states: make([]hidden, n)}
	for i := range it.states {
		it.states[i] = m.embed(s.tokens[s.computed+i], s.computed+i)
	}
	return it, true
}
