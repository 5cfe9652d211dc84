package openai

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/gather"
	"pdrouter/router/openai/jsonscan"
)

// copiedChoices are the bodies of a body's choices, each a copy of its own.
func copiedChoices(t *testing.T, b *Body) (out [][]byte) {
	t.Helper()
	prompts := []jsonscan.Span{b.fan.prompt}
	if b.Prompts > 1 {
		prompts = elements(b.Raw, b.fan.prompt.From)
	}
	for _, prompt := range prompts {
		for j := range b.N {
			seed, ok := b.seedOf(j)
			if !ok {
				t.Fatalf("choice %d has no seed", j)
			}
			var edits []jsonscan.Edit
			if b.fan.n.To > 0 {
				edits = append(edits, jsonscan.Edit{At: b.fan.n, With: []byte("1")})
			}
			if b.Prompts > 1 {
				edits = append(edits, jsonscan.Edit{At: b.fan.prompt, With: prompt.Of(b.Raw)})
			}
			if seed != nil {
				edits = append(edits, jsonscan.Edit{At: b.fan.seed, With: seed})
			}
			out = append(out, jsonscan.Splice(b.Raw, edits))
		}
	}
	return out
}

// randomFan is a body of several choices, whose members are in any order.
func randomFan(rnd *rand.Rand) (Shape, string) {
	text := func() string {
		size := rnd.IntN(12)
		if rnd.IntN(4) == 0 {
			size = gather.MinGap - 20 + rnd.IntN(gather.MinGap)
		}
		return strings.Repeat([]string{"a", `\n`, "ä", `\"`}[rnd.IntN(4)], size)
	}
	ids := func() string { return "[" + strings.Repeat("7 ,", rnd.IntN(3)*rnd.IntN(900)) + "1]" }
	space := func() string {
		return []string{"", "", " ", "\r\n\t", strings.Repeat(" ", gather.MinGap)}[rnd.IntN(40)/9]
	}
	list := func(one func() string) string {
		all := []string{one()}
		for range rnd.IntN(4) {
			all = append(all, one())
		}
		return "[" + strings.Join(all, space()+",") + space() + "]"
	}
	sh := Shape(ShapeCompletions)
	if rnd.IntN(3) == 0 {
		sh = ShapeChat
	}
	quoted := func() string { return `"` + text() + `"` }
	var all []string
	maybe := func(key string, value string) {
		if rnd.IntN(2) == 0 {
			all = append(all, `"`+key+`"`+space()+":"+space()+value)
		}
	}
	all = append(all, `"model":"m"`, `"n":`+space()+strconv.Itoa(1+rnd.IntN(4)))
	if sh == ShapeChat {
		all = append(all, `"messages":[{"role":"user","content":`+[]string{quoted(), `[{"type":"image_url","uuid":"own","image_url":null},{"uuid" : "own","text":` +
			quoted() + `}]`}[rnd.IntN(2)]+`}]`)
		maybe("tools", `[{"type":"function","function":{"name":`+quoted()+`}}]`)
		maybe("max_completion_tokens", "9")
	} else {
		all = append(all, `"prompt":`+[]func() string{quoted, ids, func() string { return list(quoted) }, func() string { return list(ids) }}[rnd.IntN(4)]())
	}
	maybe("seed", []string{"7", "-3", "-1", "null", "99999"}[rnd.IntN(5)])
	maybe("stream", "true")
	maybe("max_tokens", "16")
	maybe("min_tokens", "3")
	maybe("user", quoted())
	maybe("cache_salt", quoted())
	maybe("request_id", quoted())
	maybe("priority", "-2")
	maybe("kv_transfer_params", `{"a":`+quoted()+`}`)
	maybe("ec_transfer_params", "null")
	maybe("vllm_xargs", `{"kv_transfer_params":{},"x":`+quoted()+`}`)
	maybe("store", "true")
	rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return sh, space() + "{" + strings.Join(all, space()+","+space()) + "}" + space()
}

// TestChoicesAreTheSameBytes holds the bodies that share the client's bytes against copies of their own, for every choice and leg.
func TestChoicesAreTheSameBytes(t *testing.T) {
	const rounds = 1000
	fanned, shared := 0, 0
	for seed := range uint64(rounds) {
		rnd := rand.New(rand.NewPCG(seed, 17))
		sh, raw := randomFan(rnd)
		lim := Limits{Isolate: rnd.IntN(2) == 0}
		b, e := ParseBody(sh, []byte(raw), lim)
		if e != nil {
			t.Fatalf("seed %d: %s: %v", seed, raw, e)
		}
		b.Urgent = rnd.IntN(2) == 0
		if lim.Isolate {
			key := &Sealer{Key: []byte("k")}
			b.Sealed, b.MediaIDs = key.Seal("a", b.Salt), key.MediaIDs("a")
		}
		if !b.ServesChoicesApart(false) {
			continue
		}
		fanned++
		choices, copies := b.ChoiceBodies(), copiedChoices(t, b)
		if len(choices) != len(copies) || len(choices) != b.Choices() {
			t.Fatalf("seed %d: %d choices, want %d", seed, len(choices), len(copies))
		}
		for i, one := range choices {
			own, e := ParseBody(sh, copies[i], lim)
			if e != nil {
				t.Fatalf("seed %d: %s: %v", seed, copies[i], e)
			}
			own.Removed, own.Sealed, own.MediaIDs, own.Urgent = b.Removed, b.Sealed, b.MediaIDs, b.Urgent
			if diff := cmp.Diff(readOf(own), readOf(one)); diff != "" {
				t.Fatalf("seed %d, choice %d: -copied +shared\n%s", seed, i, diff)
			}
			for _, l := range []Variant{VariantDecode, VariantPrefill, VariantPrefillMirrored} {
				for _, kv := range [][]byte{nil, []byte(kvMember), []byte(`"a":1,"b":2`)} {
					want := own.AppendVariant([]byte("x"), nil, l, "id", kv)
					if got := one.AppendVariant([]byte("x"), nil, l, "id", kv); !bytes.Equal(got, want) {
						t.Fatalf("seed %d, choice %d, leg %d:\n%s\nwant\n%s", seed, i, l, got, want)
					}
					var g gather.Gaps
					joined := one.AppendVariant([]byte("x"), &g, l, "id", kv)
					if got := bytes.Join(g.Join(nil, joined), nil); !bytes.Equal(got, want) {
						t.Fatalf("seed %d, choice %d, leg %d, with gaps:\n%s\nwant\n%s", seed, i, l, got, want)
					}
					shared += g.Size()
				}
			}
		}
	}
	if fanned < rounds/2 || shared == 0 {
		t.Errorf("%d of %d bodies had choices; %d bytes shared", fanned, rounds, shared)
	}
}

// readOf is all that was read of a body, but where it lies.
func readOf(b *Body) map[string]any {
	asked := ""
	for _, part := range b.Asked {
		asked += string(part.Of(b.Raw)) + "\x00"
	}
	return map[string]any{
		"shape": b.Shape, "model": b.Model, "stream": b.Stream, "n": b.N, "prompts": b.Prompts, "max": b.MaxTokens, "bytes": b.promptBytes,
		"ids": b.promptIDs, "salt": string(b.CacheSalt()), "why": b.Unsplittable, "priority": b.Priority, "urgent": b.Urgent, "formed": b.formed,
		"unkept": b.Unkept, "removed": b.Removed, "asked": asked, "members": b.members, "limits": b.samplingMembers, "owns": b.owns, "previous": b.Previous,
	}
}

// TestFanBodies checks that bodies of choices differ from the client's in nothing else.
func TestFanBodies(t *testing.T) {
	for _, row := range []struct {
		shape Shape
		body  string
		want  []string // nil: it does not fan out
	}{
		{ShapeCompletions, `{"model":"m","prompt":["a","b, c"],"x":1.50}`, []string{
			`{"model":"m","prompt":"a","x":1.50}`, `{"model":"m","prompt":"b, c","x":1.50}`}},
		{ShapeCompletions, `{"n" : 2,"prompt":[[1, 2],[3]],"seed":9223372036854775806}`, []string{
			`{"n" : 1,"prompt":[1, 2],"seed":9223372036854775806}`, `{"n" : 1,"prompt":[1, 2],"seed":9223372036854775807}`,
			`{"n" : 1,"prompt":[3],"seed":9223372036854775806}`, `{"n" : 1,"prompt":[3],"seed":9223372036854775807}`}},
		{ShapeCompletions, `{"n":2,"prompt":[1,2]}`, []string{`{"n":1,"prompt":[1,2]}`, `{"n":1,"prompt":[1,2]}`}},
		{ShapeChat, `{"messages":[],"seed":-1,"n":2}`, []string{`{"messages":[],"seed":-1,"n":1}`, `{"messages":[],"seed":-1,"n":1}`}},
		{ShapeChat, `{"messages":[],"seed":null,"n":2}`, []string{`{"messages":[],"seed":null,"n":1}`, `{"messages":[],"seed":null,"n":1}`}},
		{ShapeChat, `{"messages":[],"seed":-9,"n":2}`, []string{`{"messages":[],"seed":-9,"n":1}`, `{"messages":[],"seed":-8,"n":1}`}},
		{ShapeChat, `{"messages":[],"seed":9223372036854775807,"n":2}`, nil},
		{ShapeChat, `{"messages":[],"seed":-2,"n":2}`, nil},
		{ShapeChat, `{"messages":[],"seed":1.5,"n":2}`, nil},
		{ShapeChat, `{"messages":[],"seed":"1","n":2}`, nil},
		{ShapeChat, `{"messages":[],"temperature":0,"n":2}`, nil},
		{ShapeCompletions, `{"prompt":["a","b"],"temperature":0}`, []string{`{"prompt":"a","temperature":0}`, `{"prompt":"b","temperature":0}`}},
		{ShapeCompletions, `{"prompt":["a","b"],"echo":true}`, nil},
		{ShapeCompletions, `{"prompt":["a","b"],"prompt_logprobs":1}`, nil},
		{ShapeCompletions, `{"prompt":"a","n":2,"best_of":2}`, nil},
		{ShapeCompletions, `{"prompt":"a","n":2,"use_beam_search":true}`, nil},
		{ShapeCompletions, `{"prompt":"a","n":2,"max_tokens":1}`, nil},
		{ShapeCompletions, `{"prompt":"a"}`, nil},
	} {
		b, err := ParseBody(row.shape, []byte(row.body), Limits{})
		if err != nil {
			t.Fatalf("%s: %v", row.body, err)
		}
		var got []string
		if b.ServesChoicesApart(false) {
			for _, choice := range b.ChoiceBodies() {
				raw := choice.AppendRaw(nil, nil, 0, len(b.Raw))
				got = append(got, string(raw))
				if one, err := ParseBody(row.shape, raw, Limits{}); err != nil || one.Unsplittable != "" {
					t.Errorf("%s: unsplittable by %q: %v", raw, one.Unsplittable, err)
				}
			}
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", row.body, diff)
		}
	}
}
