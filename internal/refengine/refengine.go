// Package refengine is the reference engine: a small deterministic model with a paged KV cache and tensor-parallel
// ranks that needs no GPU. Its answers are computed from the KV bytes it holds, so a lost, late or foreign block
// shows in the text. Demo, tests and bench run it; it is not for users.
package refengine
