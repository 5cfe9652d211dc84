package router

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/gather"
)

// copiedChoices are the bodies of a body's choices, each a copy of its own.
func copiedChoices(t *testing.T, b *body) (out [][]byte) {
	t.Helper()
	prompts := []span{b.fan.prompt}
	if b.prompts > 1 {
		prompts = elements(b.raw, b.fan.prompt.from)
	}
	for _, prompt := range prompts {
		for j := range b.n {
			seed, ok := b.seedOf(j)
			if !ok {
				t.Fatalf("choice %d has no seed", j)
			}
			var edits []edit
			if b.fan.n.to > 0 {
				edits = append(edits, edit{b.fan.n, []byte("1")})
			}
			if b.prompts > 1 {
				edits = append(edits, edit{b.fan.prompt, prompt.of(b.raw)})
			}
			if seed != nil {
				edits = append(edits, edit{b.fan.seed, seed})
			}
			out = append(out, spliced(b.raw, edits))
		}
	}
	return out
}

// randomFan is a body of several choices, whose members are in any order.
func randomFan(rnd *rand.Rand) (shape, string) {
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
	sh := shape(shapeCompletions)
	if rnd.IntN(3) == 0 {
		sh = shapeChat
	}
	quoted := func() string { return `"` + text() + `"` }
	var all []string
	maybe := func(key string, value string) {
		if rnd.IntN(2) == 0 {
			all = append(all, `"`+key+`"`+space()+":"+space()+value)
		}
	}
	all = append(all, `"model":"m"`, `"n":`+space()+strconv.Itoa(1+rnd.IntN(4)))
	if sh == shapeChat {
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
		lim := bodyLimits{Isolate: rnd.IntN(2) == 0}
		b, e := parseBody(sh, []byte(raw), lim)
		if e != nil {
			t.Fatalf("seed %d: %s: %v", seed, raw, e)
		}
		b.urgent = rnd.IntN(2) == 0
		if lim.Isolate {
			key := &sealer{key: []byte("k")}
			b.sealed, b.mediaIDs = key.seal("a", b.salt), key.mediaIDs("a")
		}
		if !b.fans(false) {
			continue
		}
		fanned++
		choices, copies := b.fanBodies(), copiedChoices(t, b)
		if len(choices) != len(copies) || len(choices) != b.choices() {
			t.Fatalf("seed %d: %d choices, want %d", seed, len(choices), len(copies))
		}
		for i, one := range choices {
			own, e := parseBody(sh, copies[i], lim)
			if e != nil {
				t.Fatalf("seed %d: %s: %v", seed, copies[i], e)
			}
			own.removed, own.sealed, own.mediaIDs, own.urgent = b.removed, b.sealed, b.mediaIDs, b.urgent
			if diff := cmp.Diff(readOf(own), readOf(one)); diff != "" {
				t.Fatalf("seed %d, choice %d: -copied +shared\n%s", seed, i, diff)
			}
			for _, l := range []leg{legDecode, legPrefill, legTwin} {
				for _, kv := range [][]byte{nil, []byte(kvJSON), []byte(`"a":1,"b":2`)} {
					want := own.leg([]byte("x"), nil, l, "id", kv)
					if got := one.leg([]byte("x"), nil, l, "id", kv); !bytes.Equal(got, want) {
						t.Fatalf("seed %d, choice %d, leg %d:\n%s\nwant\n%s", seed, i, l, got, want)
					}
					var g gather.Gaps
					joined := one.leg([]byte("x"), &g, l, "id", kv)
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
func readOf(b *body) map[string]any {
	asked := ""
	for _, part := range b.asked {
		asked += string(part.of(b.raw)) + "\x00"
	}
	return map[string]any{
		"shape": b.shape, "model": b.model, "stream": b.stream, "n": b.n, "prompts": b.prompts, "max": b.maxTokens, "bytes": b.promptBytes,
		"ids": b.promptIDs, "salt": string(b.cacheSalt()), "why": b.unsplittable, "priority": b.priority, "urgent": b.urgent, "formed": b.formed,
		"unkept": b.unkept, "removed": b.removed, "asked": asked, "members": b.members, "limits": b.limits, "owns": b.owns, "previous": b.previous,
	}
}

// TestFanBodies checks that bodies of choices differ from the client's in nothing else.
func TestFanBodies(t *testing.T) {
	for _, row := range []struct {
		shape shape
		body  string
		want  []string // nil: it does not fan out
	}{
		{shapeCompletions, `{"model":"m","prompt":["a","b, c"],"x":1.50}`, []string{
			`{"model":"m","prompt":"a","x":1.50}`, `{"model":"m","prompt":"b, c","x":1.50}`}},
		{shapeCompletions, `{"n" : 2,"prompt":[[1, 2],[3]],"seed":9223372036854775806}`, []string{
			`{"n" : 1,"prompt":[1, 2],"seed":9223372036854775806}`, `{"n" : 1,"prompt":[1, 2],"seed":9223372036854775807}`,
			`{"n" : 1,"prompt":[3],"seed":9223372036854775806}`, `{"n" : 1,"prompt":[3],"seed":9223372036854775807}`}},
		{shapeCompletions, `{"n":2,"prompt":[1,2]}`, []string{`{"n":1,"prompt":[1,2]}`, `{"n":1,"prompt":[1,2]}`}},
		{shapeChat, `{"messages":[],"seed":-1,"n":2}`, []string{`{"messages":[],"seed":-1,"n":1}`, `{"messages":[],"seed":-1,"n":1}`}},
		{shapeChat, `{"messages":[],"seed":null,"n":2}`, []string{`{"messages":[],"seed":null,"n":1}`, `{"messages":[],"seed":null,"n":1}`}},
		{shapeChat, `{"messages":[],"seed":-9,"n":2}`, []string{`{"messages":[],"seed":-9,"n":1}`, `{"messages":[],"seed":-8,"n":1}`}},
		{shapeChat, `{"messages":[],"seed":9223372036854775807,"n":2}`, nil},
		{shapeChat, `{"messages":[],"seed":-2,"n":2}`, nil},
		{shapeChat, `{"messages":[],"seed":1.5,"n":2}`, nil},
		{shapeChat, `{"messages":[],"seed":"1","n":2}`, nil},
		{shapeChat, `{"messages":[],"temperature":0,"n":2}`, nil},
		{shapeCompletions, `{"prompt":["a","b"],"temperature":0}`, []string{`{"prompt":"a","temperature":0}`, `{"prompt":"b","temperature":0}`}},
		{shapeCompletions, `{"prompt":["a","b"],"echo":true}`, nil},
		{shapeCompletions, `{"prompt":["a","b"],"prompt_logprobs":1}`, nil},
		{shapeCompletions, `{"prompt":"a","n":2,"best_of":2}`, nil},
		{shapeCompletions, `{"prompt":"a","n":2,"use_beam_search":true}`, nil},
		{shapeCompletions, `{"prompt":"a","n":2,"max_tokens":1}`, nil},
		{shapeCompletions, `{"prompt":"a"}`, nil},
	} {
		b, err := parseBody(row.shape, []byte(row.body), bodyLimits{})
		if err != nil {
			t.Fatalf("%s: %v", row.body, err)
		}
		var got []string
		if b.fans(false) {
			for _, choice := range b.fanBodies() {
				raw := choice.join(nil, nil, 0, len(b.raw))
				got = append(got, string(raw))
				if one, err := parseBody(row.shape, raw, bodyLimits{}); err != nil || one.unsplittable != "" {
					t.Errorf("%s: unsplittable by %q: %v", raw, one.unsplittable, err)
				}
			}
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", row.body, diff)
		}
	}
}
