package answer

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
)

func TestTakePromptIDs(t *testing.T) {
	for _, row := range []struct{ name, in, ids, rest string }{
		{"none", `{"a":1}`, "", `{"a":1}`},
		{"as they are written", `{"a":[1],"prompt_token_ids": [1, 2,33 ] ,"b":{}}`, "[1, 2,33 ]", `{"a":[1],"prompt_token_ids": null ,"b":{}}`},
		{"an escaped key", `{"prompt\u005ftoken_ids":[0]}`, "[0]", `{"prompt\u005ftoken_ids":null}`},
		{"the same array before", `{"choices":[{"token_ids":[5]}],"prompt_token_ids":[5]}`, "[5]", `{"choices":[{"token_ids":[5]}],"prompt_token_ids":null}`},
		{"of a choice", `{"choices":[{"prompt_token_ids":[5]}]}`, "[5]", `{"choices":[{"prompt_token_ids":null}]}`},
		{"of the second choice", `{"choices":[{"prompt_token_ids":null},{"prompt_token_ids":[5]}]}`, "", `{"choices":[{"prompt_token_ids":null},{"prompt_token_ids":[5]}]}`},
		{"of both", `{"choices":[{"prompt_token_ids":[5]}],"prompt_token_ids":[6]}`, "[6]", `{"choices":[{"prompt_token_ids":[5]}],"prompt_token_ids":null}`},
		{"of a choice, null outermost", `{"prompt_token_ids":null,"choices":[{"prompt_token_ids":[5]}]}`, "[5]", `{"prompt_token_ids":null,"choices":[{"prompt_token_ids":null}]}`},
		{"of a choice, null at the end", `{"choices":[{"prompt_token_ids":[5]}],"prompt_token_ids":null}`, "[5]", `{"choices":[{"prompt_token_ids":null}],"prompt_token_ids":null}`},
		{"in a text", `{"t":"\"prompt_token_ids\":[1]"}`, "", `{"t":"\"prompt_token_ids\":[1]"}`},
		{"null", `{"prompt_token_ids":null}`, "", `{"prompt_token_ids":null}`},
		{"empty", `{"prompt_token_ids":[ ]}`, "", `{"prompt_token_ids":[ ]}`},
		{"words", `{"prompt_token_ids":[1,"2"]}`, "", `{"prompt_token_ids":[1,"2"]}`},
		{"below 0", `{"prompt_token_ids":[-1,2]}`, "", `{"prompt_token_ids":[-1,2]}`},
		{"fractions", `{"prompt_token_ids":[1.5]}`, "", `{"prompt_token_ids":[1.5]}`},
		{"arrays", `{"prompt_token_ids":[[1],[2]]}`, "", `{"prompt_token_ids":[[1],[2]]}`},
		{"broken behind", `{"prompt_token_ids":[1],`, "", `{"prompt_token_ids":[1],`},
		{"a leading zero", `{"prompt_token_ids":[01]}`, "", `{"prompt_token_ids":[01]}`},
		{"zeros", `{"prompt_token_ids":[0,10]}`, "[0,10]", `{"prompt_token_ids":null}`},
		{"too large", `{"prompt_token_ids":[12345678901]}`, "", `{"prompt_token_ids":[12345678901]}`},
		{"a comma too many", `{"prompt_token_ids":[1,]}`, "", `{"prompt_token_ids":[1,]}`},
		{"no comma", `{"prompt_token_ids":[1 2]}`, "", `{"prompt_token_ids":[1 2]}`},
		{"no end", `{"prompt_token_ids":[1`, "", `{"prompt_token_ids":[1`},
		{"no object", `[1]`, "", `[1]`},
	} {
		if ids, rest := TakePromptIDs([]byte(row.in)); string(ids) != row.ids || string(rest) != row.rest {
			t.Errorf("%s: got %s and %s, want %s and %s", row.name, ids, rest, row.ids, row.rest)
		}
	}
}

// FuzzTakePromptIDs holds the ids against what encoding/json reads, and the rest against the answer.
func FuzzTakePromptIDs(f *testing.F) {
	for _, in := range []string{`{"a":[1],"prompt_token_ids": [1, 2,33 ] ,"b":{}}`, `{"prompt_token_ids":[[1]]}`, `{"prompt\u005ftoken_ids":[0]}`, `{"prompt_token_ids":[00]}`} {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		before := bytes.Clone(in)
		ids, rest := TakePromptIDs(in)
		if !bytes.Equal(in, before) {
			t.Fatal("the answer was changed")
		}
		if ids == nil {
			if !bytes.Equal(rest, in) {
				t.Errorf("without ids %q became %q", in, rest)
			}
			return
		}
		var list []uint64
		if err := json.Unmarshal(ids, &list); err != nil || len(list) == 0 {
			t.Errorf("%q are no token ids: %v", ids, err)
		}
		if i := bytes.Index(in, ids); i < 0 || !slices.Equal(rest, slices.Concat(in[:i], []byte("null"), in[i+len(ids):])) && bytes.Count(in, ids) == 1 {
			t.Errorf("%q became %q", in, rest)
		}
		if json.Valid(in) && !json.Valid(rest) {
			t.Errorf("%q became %q, which is no JSON", in, rest)
		}
	})
}
