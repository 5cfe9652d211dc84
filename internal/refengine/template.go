package refengine

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// chatPrompt applies the chat template to the turns of a conversation: the tools first, then each turn after its role. Like templates of models
// that reason, it drops the reasoning of a turn once the user has spoken again.
func chatPrompt(turns []turnBody, tools json.RawMessage) ([][]int32, *apiError) {
	if len(turns) == 0 {
		return nil, badRequest("messages", "messages is missing or empty")
	}
	var b strings.Builder
	if listed := compact(tools); listed != "" {
		b.WriteString("<|tools|>\n" + listed + "\n")
	}
	spoken := 0
	for i, t := range turns {
		if t.Role == "user" {
			spoken = i
		}
	}
	for i, t := range turns {
		content, ok := contentText(t.Content)
		if !ok {
			return nil, badRequest("messages", "content is neither a text nor an array of text parts")
		}
		switch t.Role {
		case "system", "developer", "user", "assistant", "tool":
		default:
			return nil, badRequest("messages", "role is %.40q; want system, developer, user, assistant or tool", t.Role)
		}
		b.WriteString("<|" + t.Role + "|>\n")
		if t.Reasoning != "" && i > spoken {
			b.WriteString("<think>" + t.Reasoning + "</think>")
		}
		b.WriteString(content + compact(t.Calls) + "\n")
	}
	b.WriteString("<|assistant|>\n")
	return [][]int32{tokenize(b.String())}, nil
}

// compact is JSON without white space; "" of none and of null.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if len(raw) == 0 || json.Compact(&b, raw) != nil || b.String() == "null" {
		return ""
	}
	return b.String()
}

// givenPrompt returns the token ids that come with a hand-off in place of the messages of a chat, as stock vLLM takes them
// (vllm-project/vllm#48145); nil if there are none.
func givenPrompt(params json.RawMessage) ([][]int32, *apiError) {
	const param = "kv_transfer_params.prompt_token_ids"
	var p struct {
		IDs json.RawMessage `json:"prompt_token_ids"`
	}
	if json.Unmarshal(params, &p) != nil || len(p.IDs) == 0 || string(p.IDs) == "null" {
		return nil, nil // what is wrong with the params is said where the hand-off is read
	}
	var ids []int32
	wrong := func(id int32) bool { return id < 0 || id >= vocabulary }
	if json.Unmarshal(p.IDs, &ids) != nil || len(ids) == 0 || slices.ContainsFunc(ids, wrong) {
		return nil, badRequest(param, "%s must be a non-empty list of token ids from 0 to %d", param, vocabulary-1)
	}
	return [][]int32{ids}, nil
}
