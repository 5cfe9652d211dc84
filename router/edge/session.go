package edge

import (
	"hash/fnv"

	"pdrouter/router/openai"
)

// sessionHeaders are what clients call their sessions by, the first that is there counts: vLLM's, and those of coding agents and of other
// gateways.
var sessionHeaders = []string{"X-Session-Id", "X-Claude-Code-Session-Id", "X-Session-Affinity", "Session-Id", "Session_id", "X-Dynamo-Session-Id"}

// SessionOf returns a hash of what names the request's session: one of these headers, else prompt_cache_key or user of the body; 0 if nothing
// does. All gateways have the same for the same name. header returns the field with a name.
func SessionOf(header func(name string) []byte, b *openai.Body) uint64 {
	for _, name := range sessionHeaders {
		if v := header(name); len(v) > 0 {
			return hashOf(v)
		}
	}
	if b == nil || len(b.SessionKey) == 0 {
		return 0
	}
	return hashOf(b.SessionKey)
}

func hashOf(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b)
	return max(h.Sum64(), 1)
}
