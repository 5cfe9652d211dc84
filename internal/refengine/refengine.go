// Package refengine is the reference engine: a small deterministic model with a paged KV cache and tensor- and
// pipeline-parallel ranks that needs no GPU. Its answers are computed from the KV bytes it holds, so a lost, late or
// foreign block shows in the text. Demo, tests and bench run it; it is not for users.
//
// The model (model.go) is pure. A rank (rank.go) is a goroutine that owns memory of its own and computes its share of
// the heads; a group of them (group.go) answers one step. The Engine (engine.go) owns the block table and decides
// what each step computes. The Server (http.go) speaks the OpenAI routes over a given listener. The plane
// (plane.go) ties one kvplane agent to each rank, orders one way and reports the other; without it the engine serves
// aggregated requests only. Pull (pull.go) is the other way to hand KV over, as stock vLLM does it, among engines of one process.
package refengine
