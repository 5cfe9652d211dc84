package tokens

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/openai"
)

// message is one of a conversation.
type message struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	Reasoning string `json:"reasoning,omitempty"`
}

// body is a chat with these messages, and more members.
func body(t testing.TB, messages []message, more string) *openai.Body {
	t.Helper()
	raw, err := json.Marshal(messages)
	if err != nil {
		t.Fatal(err)
	}
	b, bad := openai.ParseBody(openai.ShapeChat, fmt.Appendf(nil, `{"model":"m"%s,"messages":%s}`, more, raw), openai.Limits{})
	if bad != nil {
		t.Fatal(bad)
	}
	return b
}

func prompt(t testing.TB, messages []message) Prompt {
	t.Helper()
	p := PromptOf("m", "tenant", body(t, messages, ""))
	if len(p) != len(messages) {
		t.Fatalf("%d boundaries of %d messages", len(p), len(messages))
	}
	return p
}

// The special tokens of the templates below. Bytes are tokens of their own, and so are pairs of letters.
const (
	imStart uint32 = 100000 + iota
	imEnd
	think
	endThink
	toolsAre
)

// words are the tokens of a text: pairs of bytes from its beginning on, so that a text that goes on may end differently.
func words(dst []uint32, text string) []uint32 {
	for len(text) > 1 {
		dst = append(dst, 256+uint32(text[0])<<8+uint32(text[1]))
		text = text[2:]
	}
	if text != "" {
		dst = append(dst, uint32(text[0]))
	}
	return dst
}

// template renders a conversation up to the place where the model goes on.
type template func(messages []message) []uint32

// chatML marks each message, and ends with the head of the model's own.
func chatML(messages []message) (out []uint32) {
	for _, m := range messages {
		out = append(words(append(out, imStart), m.Role+"\n"+m.Content), imEnd, '\n')
	}
	return words(append(out, imStart), "assistant\n")
}

// thinking is chatML of a model whose reasoning is dropped once the user has spoken again.
func thinking(messages []message) (out []uint32) {
	last := 0
	for i, m := range messages {
		if m.Role == "user" {
			last = i
		}
	}
	for i, m := range messages {
		out = words(append(out, imStart), m.Role+"\n")
		if m.Role == "assistant" && i > last {
			out = append(words(append(out, think), m.Reasoning), endThink)
		}
		out = append(words(out, m.Content), imEnd, '\n')
	}
	return append(words(append(out, imStart), "assistant\n"), think)
}

// toolsLast puts the tools before the last message of the user.
func toolsLast(messages []message) (out []uint32) {
	last := 0
	for i, m := range messages {
		if m.Role == "user" {
			last = i
		}
	}
	for i, m := range messages {
		if i == last {
			out = words(append(out, toolsAre), "find, read")
		}
		out = append(words(append(out, imStart), m.Role+m.Content), imEnd)
	}
	return out
}

// plain has no special tokens, so that tokens run over the ends of messages.
func plain(messages []message) []uint32 {
	var text strings.Builder
	for _, m := range messages {
		text.WriteString(m.Role + ": " + m.Content + "\n")
	}
	return words(nil, text.String()+"assistant: ")
}

var templates = map[string]template{"ChatML": chatML, "reasoning dropped": thinking, "tools last": toolsLast, "plain": plain}

// turn appends an answer of the model and what follows: a message of the user, or a tool's.
func turn(rng *rand.Rand, messages []message) []message {
	say := func() string { return strings.Repeat("word ", rng.IntN(3)) + string(rune('a'+rng.IntN(3))) }
	messages = append(slices.Clip(messages), message{"assistant", say(), say()})
	if rng.IntN(3) == 0 {
		return append(messages, message{"tool", say(), ""})
	}
	return append(messages, message{"user", say(), ""})
}

// naive has every list of every prompt.
type naive []struct {
	messages []message
	ids      []uint32
}

// exact is the most that may be called exact of a prompt: what a list and that of a prompt that goes on from it have in common, where the
// prompt asked for goes through the message that followed.
func (n naive) exact(of []message) (most int) {
	for _, a := range n {
		k := len(a.messages)
		if k >= len(of) || !slices.Equal(a.messages, of[:k]) {
			continue
		}
		for _, b := range n {
			if len(b.messages) > k && slices.Equal(b.messages[:k+1], of[:k+1]) {
				most = max(most, CommonPrefix(a.ids, b.ids))
			}
		}
	}
	return most
}

// TestMapProperty has random conversations go on, part, be edited and asked again. What is called exact is what the template makes of the
// prompt, and never more than two lists have shown.
func TestMapProperty(t *testing.T) {
	for name, render := range templates {
		for _, limit := range []int{1 << 30, 20_000} { // with the second most is forgotten soon
			t.Run(fmt.Sprintf("%s, %d bytes", name, limit), func(t *testing.T) {
				told, known, all := 0, 0, 0
				for seed := range uint64(60) {
					rng := rand.New(rand.NewPCG(seed, 8))
					m := New(limit)
					talks := [][]message{{{"system", "be kind", ""}, {"user", "hello", ""}}}
					var seen naive
					for range 60 {
						c := talks[rng.IntN(len(talks))]
						switch rng.IntN(6) {
						case 0: // another conversation that begins alike
							c = append(slices.Clip(c[:1+rng.IntN(len(c))]), message{"user", "x" + string(rune('a'+rng.IntN(4))), ""})
						case 1: // an edited message
							c = slices.Clone(c)
							c[rng.IntN(len(c))].Content += "!"
						case 2: // the same again
						default:
							c = turn(rng, c)
						}
						talks = append(talks, c)
						p, truth := prompt(t, c), render(c)
						ids, exact, estimate := m.Lookup(p)
						if exact > len(ids) || exact > len(truth) || !slices.Equal(ids[:exact], truth[:exact]) {
							t.Fatalf("seed %d: %d ids of %v are exact, which are not those of the prompt %v", seed, exact, ids, c)
						}
						if most := seen.exact(c); exact > most {
							t.Fatalf("seed %d: %d ids are exact, and lists have shown %d: %v", seed, exact, most, c)
						}
						if estimate <= 0 || estimate < len(ids) {
							t.Fatalf("seed %d: estimate %d with %d ids", seed, estimate, len(ids))
						}
						told, all = told+exact, all+len(truth)
						known += CommonPrefix(ids, truth)
						m.Learn(p, truth)
						seen = append(seen, struct {
							messages []message
							ids      []uint32
						}{c, truth})
						if bytes := m.Bytes(); bytes > limit || bytes != m.count(t) {
							t.Fatalf("seed %d: %d bytes of at most %d; counted %d", seed, bytes, limit, m.count(t))
						}
					}
				}
				t.Logf("of %d ids %d were exact, and %d known", all, told, known)
				if least := map[string]int{"tools last": 20}[name]; limit == 1<<30 && (told < all/max(least, 6) || known < all/3) {
					t.Errorf("of %d ids %d were exact, and %d known: the map learns nothing", all, told, known)
				}
			})
		}
	}
}

// count counts what the map has, beside its own count.
func (m *Map) count(t *testing.T) (bytes int) {
	t.Helper()
	lists := map[*list]int{}
	for sum, e := range m.at {
		if e.sum != sum || e.turn < e.any || e.turn > len(e.list.ids) || e.known > len(e.list.ids) {
			t.Fatalf("entry %+v", e)
		}
		lists[e.list]++
		bytes += entrySize
	}
	for l, n := range lists {
		if n != l.entries {
			t.Fatalf("%d entries refer to a list that counts %d", n, l.entries)
		}
		bytes += l.size()
	}
	return bytes
}

// TestConversation follows one conversation turn by turn, in the shape of ChatML, and with a generation prompt that no later turn has.
func TestConversation(t *testing.T) {
	t.Run("ChatML", func(t *testing.T) { converse(t, chatML) })
	t.Run("reasoning dropped", func(t *testing.T) { converse(t, thinking) })
}

func converse(t *testing.T, render template) {
	m := New(1 << 20)
	c := []message{{"system", "You are kind.", ""}, {"user", "What is a key?", ""}}
	var before, last []uint32
	for n := range 6 {
		p, truth := prompt(t, c), render(c)
		ids, exact, estimate := m.Lookup(p)
		switch n {
		case 0:
			if ids != nil || exact != 0 || estimate != p.bytes()/4 {
				t.Errorf("of the first turn: %d ids, %d exact, estimate %d", len(ids), exact, estimate)
			}
		case 1: // nothing has shown yet where the generation prompt begins
			if exact != 0 || !slices.Equal(ids, last) {
				t.Errorf("of the second turn: %d ids, %d exact", len(ids), exact)
			}
		default:
			if want := CommonPrefix(before, last); exact != want || want == 0 {
				t.Errorf("turn %d: %d ids are exact, want %d", n, exact, want)
			}
			if !slices.Equal(ids, truth[:len(ids)]) || len(ids) < len(last)-8 {
				t.Errorf("turn %d: %d ids of the %d of the turn before are known", n, len(ids), len(last))
			}
			if off := estimate - len(truth); off < -len(truth)/4 || off > len(truth)/4 {
				t.Errorf("turn %d: the estimate is %d, the prompt has %d", n, estimate, len(truth))
			}
		}
		m.Learn(p, truth)
		if ids, _, estimate := m.Lookup(p); !slices.Equal(ids, truth) || estimate != len(truth) {
			t.Errorf("turn %d, asked again: %d ids, estimate %d; want %d", n, len(ids), estimate, len(truth))
		}
		before, last = last, truth
		c = append(slices.Clip(c), message{"assistant", fmt.Sprintf("A key opens lock %d, as everybody knows.", n), "Which one?"}, message{"user", fmt.Sprintf("And what opens lock number %d?", n+1), ""})
	}
}

// TestReasoningDropped has a model think in a loop of tools, where its reasoning stays, until the user speaks and it is dropped.
func TestReasoningDropped(t *testing.T) {
	m := New(1 << 20)
	learn := func(c []message) { m.Learn(prompt(t, c), thinking(c)) }
	c := []message{{"user", "find it", ""}}
	learn(c)
	for range 3 {
		c = append(slices.Clip(c), message{"assistant", "look", "I wonder"}, message{"tool", "nothing", ""})
		learn(c)
	}
	goes := append(slices.Clip(c), message{"assistant", "look", "I wonder"}, message{"tool", "here", ""})
	if _, exact, _ := m.Lookup(prompt(t, goes)); exact < len(thinking(c))*2/3 {
		t.Errorf("while the loop goes on %d ids are exact of %d before", exact, len(thinking(c)))
	}
	spoken := append(slices.Clip(c), message{"assistant", "found", "at last"}, message{"user", "thanks", ""})
	truth := thinking(spoken)
	ids, exact, _ := m.Lookup(prompt(t, spoken))
	if !slices.Equal(ids[:exact], truth[:exact]) {
		t.Errorf("once the user has spoken %d ids are called exact that are not", exact)
	}
	if slices.Contains(ids[:exact], think) {
		t.Errorf("reasoning that is dropped is called exact: %v", ids[:exact])
	}

	// The user speaks after an earlier message of the loop, and then there is another loop.
	fork := append(slices.Clip(c[:3]), message{"user", "look elsewhere", ""})
	learn(fork)
	fork = append(fork, message{"assistant", "look", "where else"}, message{"tool", "here", ""})
	truth = thinking(fork)
	if ids, exact, _ := m.Lookup(prompt(t, fork)); !slices.Equal(ids[:exact], truth[:exact]) {
		t.Errorf("in another loop %d ids are called exact that are not", exact)
	}
}

// TestContradicted has a list that is not what was exact shorten it, for its own prompt and those before.
func TestContradicted(t *testing.T) {
	for name, more := range map[string]message{"after a user": {"user", "c", ""}, "after a tool": {"tool", "c", ""}} {
		t.Run(name, func(t *testing.T) { contradict(t, more) })
	}
}

func contradict(t *testing.T, more message) {
	m := New(1 << 20)
	c := []message{{"user", "a", ""}}
	for n := range 3 {
		m.Learn(prompt(t, c), []uint32{1, 2, 3, 4, 5, 6, 7, 8}[:3+2*n])
		c = append(slices.Clip(c), message{"assistant", "b", ""}, more)
	}
	if _, exact, _ := m.Lookup(prompt(t, c)); exact != 5 {
		t.Fatalf("%d ids are exact, want 5", exact)
	}
	fork := append(slices.Clip(c[:4]), message{"tool", "else", ""})
	m.Learn(prompt(t, fork), []uint32{1, 2, 3, 9, 5, 6, 7})
	for _, next := range []string{"assistant", "user"} {
		if ids, exact, _ := m.Lookup(prompt(t, append(slices.Clip(fork), message{next, "b", ""}))); exact > 3 {
			t.Errorf("after a fork, and a message of the %s, %v are exact", next, ids[:exact])
		}
	}
	m.Learn(prompt(t, c), []uint32{1, 2, 9, 4, 5, 6, 7, 8, 9, 10}) // the template has read the date
	for n := 3; n < len(c); n += 2 {
		if ids, exact, _ := m.Lookup(prompt(t, append(slices.Clip(c[:n]), message{"assistant", "else", ""}))); exact > 2 || !slices.Equal(ids[:exact], []uint32{1, 2}[:exact]) {
			t.Errorf("after %d messages %v are exact", n, ids[:exact])
		}
	}
}

// TestApart has nothing learned of one prompt known of another that the engine may render, or cache, in another way.
func TestApart(t *testing.T) {
	c := []message{{"user", "one", ""}, {"assistant", "two", ""}, {"user", "three", ""}}
	of := func(model, tenant, more string) Prompt { return PromptOf(model, tenant, body(t, c, more)) }
	here := of("m", "tenant", `,"temperature":0.5,"tools":[{"type":"function"}],"max_tokens":5`)
	m := New(1 << 20)
	m.Learn(here[:1], chatML(c[:1]))
	m.Learn(here, chatML(c))
	for name, p := range map[string]Prompt{
		"model":                   of("other", "tenant", `,"tools":[{"type":"function"}]`),
		"tenant":                  of("m", "other", `,"tools":[{"type":"function"}]`),
		"names that run together": of("mten", "ant", `,"tools":[{"type":"function"}]`),
		"salt":                    of("m", "tenant", `,"tools":[{"type":"function"}],"cache_salt":"s"`),
		"tools":                   of("m", "tenant", `,"tools":[{"type":"custom"}]`),
		"no tools":                of("m", "tenant", ``),
		"template":                of("m", "tenant", `,"tools":[{"type":"function"}],"chat_template_kwargs":{"enable_thinking":false}`),
		"a new field":             of("m", "tenant", `,"tools":[{"type":"function"}],"reads_minds":true`),
	} {
		if ids, exact, _ := m.Lookup(p); len(p) != 3 || ids != nil || exact != 0 {
			t.Errorf("another %s: %d boundaries, %d ids, %d exact", name, len(p), len(ids), exact)
		}
	}
	same := of("m", "tenant", `,"max_tokens":7,"stream":true,"tools":[{"type":"function"}],"user":"u","seed":3`)
	if d := cmp.Diff(here, same); d != "" {
		t.Errorf("members that no template reads make another prompt:\n%s", d)
	}
	for name, b := range map[string]string{
		"an image":    `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,"}}]}]}`,
		"no message":  `{"messages":[]}`,
		"no messages": `{}`,
		"words":       `{"messages":["a"]}`,
	} {
		parsed, bad := openai.ParseBody(openai.ShapeChat, []byte(b), openai.Limits{})
		if bad != nil {
			t.Fatalf("%s: %v", name, bad)
		}
		if p := PromptOf("m", "tenant", parsed); len(p) != 0 {
			t.Errorf("%s: %d boundaries", name, len(p))
		}
	}
	completion, _ := openai.ParseBody(openai.ShapeCompletions, []byte(`{"prompt":"a","messages":[{"role":"user"}]}`), openai.Limits{})
	if p := PromptOf("m", "tenant", completion); len(p) != 0 {
		t.Errorf("a completion has %d boundaries", len(p))
	}
}

// TestForgotten has the map keep within its bound, and forget first what was not used for longest.
func TestForgotten(t *testing.T) {
	const limit = 100_000
	m := New(limit)
	talk := func(i int) []message { return []message{{"user", fmt.Sprint("talk ", i), ""}} }
	ids := make([]uint32, 1000)
	for i := range 500 {
		m.Learn(prompt(t, talk(i)), slices.Clone(ids))
		if got, _, _ := m.Lookup(prompt(t, talk(0))); len(got) != len(ids) {
			t.Fatalf("the talk that is looked up all the time is forgotten after %d others", i)
		}
	}
	n := len(m.at)
	if bytes := m.Bytes(); bytes > limit || n < limit/5000 {
		t.Errorf("%d bytes for %d boundaries", bytes, n)
	}
	if got, _, _ := m.Lookup(prompt(t, talk(1))); got != nil {
		t.Error("the oldest talk is known")
	}
	if got, _, _ := m.Lookup(prompt(t, talk(499))); got == nil {
		t.Error("the newest talk is forgotten")
	}
	m.Learn(prompt(t, talk(1000)), make([]uint32, limit/4))
	if len(m.at) != n {
		t.Error("a prompt as large as the whole map has made it forget the others")
	}
	m.SetLimit(limit / 2)
	if bytes := m.Bytes(); bytes > limit/2 || bytes < limit/4 {
		t.Errorf("%d bytes after the bound has become %d", bytes, limit/2)
	}
	if got, _, _ := m.Lookup(prompt(t, talk(499))); got == nil {
		t.Error("the newest talk is forgotten with the smaller bound")
	}
}

// TestMapConcurrent is for the race detector.
func TestMapConcurrent(t *testing.T) {
	m := New(50_000)
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(g, 9))
			c := []message{{"user", "hello", ""}}
			for range 200 {
				if c = turn(rng, c); len(c) > 20 {
					c = c[:1]
				}
				p, truth := prompt(t, c), chatML(c)
				if ids, exact, _ := m.Lookup(p); !slices.Equal(ids[:exact], truth[:exact]) {
					t.Errorf("%d ids are not the prompt's", exact)
				}
				m.Learn(p, truth)
			}
		})
	}
	wg.Wait()
}

func TestParseIDs(t *testing.T) {
	for in, want := range map[string][]uint32{
		"[1, 2,\n3 ]": {1, 2, 3}, " [4294967295]": {1<<32 - 1}, "[4294967296]": nil, "[-1]": nil, "[1.0]": nil, "[1,]": nil, "[]": nil, "": nil, "{}": nil, "[1]2": nil, "[[1]]": nil, `["1"]`: nil,
	} {
		if got := ParseIDs([]byte(in)); !slices.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%q: got %v, want %v", in, got, want)
		}
	}
}

// FuzzPromptOf has every chat that a gateway accepts have a boundary after each message, or none at all.
func FuzzPromptOf(f *testing.F) {
	for _, in := range []string{`{"messages":[{"role":"user","content":"a"},{"role":"assistant"}],"tools":[]}`, `{"messages":[1]}`, `{"messages":{}}`, `{"messages":[{"r\u006fle":"user"}]}`, `{}`} {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, bad := openai.ParseBody(openai.ShapeChat, raw, openai.Limits{})
		if bad != nil {
			return
		}
		p := PromptOf("m", "t", b)
		var is struct{ Messages []json.RawMessage }
		if err := json.Unmarshal(raw, &is); err == nil && len(p) != 0 && len(p) != len(is.Messages) {
			t.Errorf("%q: %d boundaries", raw, len(p))
		}
		if p.bytes() > len(raw) || !slices.EqualFunc(p, PromptOf("m", "t", b), func(a, b Boundary) bool { return a == b }) {
			t.Errorf("%q: %d bytes", raw, p.bytes())
		}
		m := New(1 << 20)
		m.Learn(p, []uint32{1, 2})
		if ids, exact, _ := m.Lookup(p); exact != 0 || len(p) > 0 && len(ids) != 2 {
			t.Errorf("%q: %v, %d exact", raw, ids, exact)
		}
	})
}
