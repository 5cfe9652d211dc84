package answer

import "testing"

func TestTakePromptIDs(t *testing.T) {
	for _, row := range []struct{ name, in, ids, rest string }{
		{"none", `{"a":1}`, "", `{"a":1}`},
		{"as they are written", `{"a":[1],"prompt_token_ids": [1, 2,33 ] ,"b":{}}`, "[1, 2,33 ]", `{"a":[1],"prompt_token_ids": null ,"b":{}}`},
		{"an escaped key", `{"prompt\u005ftoken_ids":[0]}`, "[0]", `{"prompt\u005ftoken_ids":null}`},
		{"the same array before", `{"choices":[{"token_ids":[5]}],"prompt_token_ids":[5]}`, "[5]", `{"choices":[{"token_ids":[5]}],"prompt_token_ids":null}`},
		{"of a choice", `{"choices":[{"prompt_token_ids":[5]}]}`, "", `{"choices":[{"prompt_token_ids":[5]}]}`},
		{"in a text", `{"t":"\"prompt_token_ids\":[1]"}`, "", `{"t":"\"prompt_token_ids\":[1]"}`},
		{"null", `{"prompt_token_ids":null}`, "", `{"prompt_token_ids":null}`},
		{"empty", `{"prompt_token_ids":[ ]}`, "", `{"prompt_token_ids":[ ]}`},
		{"words", `{"prompt_token_ids":[1,"2"]}`, "", `{"prompt_token_ids":[1,"2"]}`},
		{"below 0", `{"prompt_token_ids":[-1,2]}`, "", `{"prompt_token_ids":[-1,2]}`},
		{"fractions", `{"prompt_token_ids":[1.5]}`, "", `{"prompt_token_ids":[1.5]}`},
		{"arrays", `{"prompt_token_ids":[[1],[2]]}`, "", `{"prompt_token_ids":[[1],[2]]}`},
		{"broken behind", `{"prompt_token_ids":[1],`, "", `{"prompt_token_ids":[1],`},
		{"no object", `[1]`, "", `[1]`},
	} {
		if ids, rest := TakePromptIDs([]byte(row.in)); string(ids) != row.ids || string(rest) != row.rest {
			t.Errorf("%s: got %s and %s, want %s and %s", row.name, ids, rest, row.ids, row.rest)
		}
	}
}
