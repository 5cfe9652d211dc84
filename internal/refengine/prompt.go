package refengine

import "encoding/json"

// parsePrompts reads the prompt of a completion: a text, tokens, or an array of either.
func parsePrompts(raw json.RawMessage) ([][]int32, *apiError) {
	var text string
	var texts []string
	var tokens []int32
	var many [][]int32
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, badRequest("prompt", "prompt is missing")
	case json.Unmarshal(raw, &text) == nil:
		many = [][]int32{tokenize(text)}
	case json.Unmarshal(raw, &texts) == nil:
		for _, t := range texts {
			many = append(many, tokenize(t))
		}
	case json.Unmarshal(raw, &tokens) == nil:
		many = [][]int32{tokens}
	case json.Unmarshal(raw, &many) == nil:
	default:
		return nil, badRequest("prompt", "prompt is neither a text nor tokens nor an array of them")
	}
	if len(many) == 0 || len(many) > maxPrompts {
		return nil, badRequest("prompt", "%d prompts; want 1 to %d", len(many), maxPrompts)
	}
	for _, p := range many {
		if len(p) == 0 {
			return nil, badRequest("prompt", "a prompt without tokens")
		}
		for _, t := range p {
			if t < 0 || t >= vocabulary {
				return nil, badRequest("prompt", "token %d; want 0 to %d", t, vocabulary-1)
			}
		}
	}
	return many, nil
}

func contentText(raw json.RawMessage) (string, bool) {
	var text string
	if len(raw) == 0 || json.Unmarshal(raw, &text) == nil { // null leaves the text empty
		return text, true
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return "", false
	}
	for _, p := range parts {
		if p.Type != "text" {
			return "", false
		}
		text += p.Text
	}
	return text, true
}

// parseStops reads stop: a text or an array of texts, none of them empty.
func parseStops(raw json.RawMessage) ([]string, *apiError) {
	var one *string
	var many []string
	switch {
	case len(raw) == 0:
	case json.Unmarshal(raw, &one) == nil:
		if one != nil {
			many = []string{*one}
		}
	case json.Unmarshal(raw, &many) == nil:
	default:
		return nil, badRequest("stop", "stop is neither a text nor an array of texts")
	}
	if len(many) > maxStops {
		return nil, badRequest("stop", "%d stops; want at most %d", len(many), maxStops)
	}
	for _, s := range many {
		if s == "" {
			return nil, badRequest("stop", "an empty stop")
		}
	}
	return many, nil
}
