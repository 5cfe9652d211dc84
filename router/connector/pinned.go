package connector

import (
	"encoding/json"
	"slices"
)

// FirstBlocks returns the params with which an engine reads the first blocks of what the answer of a decode engine says that it pins (vLLM's
// bidirectional_kv_xfer), as a decode engine does: those of that many tokens. It reports false if the answer does not list them, in one list, or says
// that it pins fewer tokens. All else stays as the engine wrote it; whoever reads them refuses them when their time is over.
func FirstBlocks(kv []byte, blocks, tokens int) ([]byte, bool) {
	var members map[string]json.RawMessage
	if json.Unmarshal(kv, &members) != nil {
		return nil, false
	}
	var lists [][]json.RawMessage
	var has int
	if json.Unmarshal(members["remote_block_ids"], &lists) != nil || json.Unmarshal(members["remote_num_tokens"], &has) != nil ||
		len(lists) != 1 || len(lists[0]) < blocks || has < tokens || blocks <= 0 {
		return nil, false
	}
	for name, value := range map[string]any{
		"remote_block_ids": [][]json.RawMessage{slices.Clip(lists[0][:blocks])}, "remote_num_tokens": tokens, "do_remote_decode": false, "do_remote_prefill": true,
	} {
		members[name], _ = json.Marshal(value) // these values have a form in JSON
	}
	out, err := json.Marshal(members)
	return out, err == nil
}
