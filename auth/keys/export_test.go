package keys

import "context"

// MaxJWKS is how many bytes a key set may have.
const MaxJWKS = maxJWKS

// Ask asks once.
func (j *JWKS) Ask(ctx context.Context) error { return j.ask(ctx) }

// Tell logs how a question ended.
func (j *JWKS) Tell(err error, failures int) int { return j.tell(err, failures) }
