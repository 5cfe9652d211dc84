package fleet

import (
	"bytes"
	"sync/atomic"
)

// TokenIDs is what an engine's answers show of whether it accepts legs with the members for a prompt's token ids: return_token_ids of a
// prefill engine, kv_transfer_params.prompt_token_ids of a decode engine. It is safe for concurrent use; in the zero value nothing is known.
type TokenIDs struct{ state atomic.Uint32 }

const (
	tokensUnknown uint32 = iota
	tokensAccepted
	tokensRefused
)

// Refused reports whether the engine's run has refused the members.
func (t *TokenIDs) Refused() bool { return t.state.Load() == tokensRefused }

// Accept notes a usable answer to a leg with the members.
func (t *TokenIDs) Accept() {
	if t.state.Load() == tokensUnknown {
		t.state.CompareAndSwap(tokensUnknown, tokensAccepted)
	}
}

// Refuse notes that the members were the reason for a rejection: the request was accepted without. It reports whether that is new.
func (t *TokenIDs) Refuse() bool { return t.state.Swap(tokensRefused) != tokensRefused }

// MayRefuse reports whether the member may be the reason why a leg with it was rejected with this body: the run has never accepted it, or the
// body names it. What a body says proves nothing, as it may repeat what the client has sent.
func (t *TokenIDs) MayRefuse(member string, body []byte) bool {
	return t.state.Load() != tokensAccepted || bytes.Contains(body, []byte(member))
}

// Reset forgets all: the engine may be another run.
func (t *TokenIDs) Reset() { t.state.Store(tokensUnknown) }
