package migration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pdrouter/internal/golden"
	"pdrouter/router/fleet"
	"pdrouter/router/tokens"
)

// TestChooseScripts runs testdata/choose.txt. offer NAME TOKENS WORTH [unwanted] makes an offer, choose ROOM says what is taken.
func TestChooseScripts(t *testing.T) {
	golden.Scripts(t, "testdata/choose.txt", func() func([]string) string {
		var offers []offer
		unwanted := map[string]bool{}
		return func(words []string) (did string) {
			switch words[0] {
			case "offer":
				worth, err := strconv.ParseFloat(words[3], 64)
				if err != nil {
					t.Fatal(err)
				}
				offers = append(offers, offer{c: &conversation{model: words[1]}, tokens: number(t, words[2]), worth: worth})
				unwanted[words[1]] = len(words) > 4
			case "choose":
				for _, o := range choose(offers, number(t, words[1]), func(o *offer) bool { return !unwanted[o.c.model] }) {
					did += " " + o.c.model
				}
				if did == "" {
					did = " nothing"
				}
			}
			return did
		}
	})
}

// TestSharedScripts runs testdata/beginnings.txt. NAME TOKENS N ENGINE... is a conversation, a letter for each of its tokens, that counts N and that
// the engines have; ENGINE/TOKENS is one that has so many of them. shared LEAST says what conversations share, apart what is taken of it if all is
// worth what it counts.
func TestSharedScripts(t *testing.T) {
	golden.Scripts(t, "testdata/beginnings.txt", func() func([]string) string {
		var all []beginning
		engines := map[string]*fleet.Engine{}
		return func(words []string) (did string) {
			if words[0] != "shared" && words[0] != "apart" {
				all = append(all, conversationOf(t, words, engines))
				return ""
			}
			found := sharedOf(all, number(t, words[1]))
			slices.SortFunc(found, func(a, b shared) int { return strings.Compare(a.text(), b.text()) })
			if words[0] == "shared" {
				for _, s := range found {
					did += fmt.Sprintf(" %s %g %s;", s.text(), s.n, s.where())
				}
				return did
			}
			var offers []offer
			for _, s := range found {
				offers = append(offers, offer{c: s.c, tokens: s.tokens, worth: s.n * float64(s.tokens)})
			}
			for _, o := range choose(offers, 1000, apart()) {
				did += " " + (&shared{c: o.c, tokens: o.tokens}).text()
			}
			return did
		}
	})
}

func number(t *testing.T, word string) int {
	n, err := strconv.Atoi(word)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func conversationOf(t *testing.T, words []string, engines map[string]*fleet.Engine) beginning {
	c := &conversation{}
	for _, token := range words[1] {
		c.ids = append(c.ids, uint32(token))
	}
	b := beginning{c: c, tokens: len(c.ids), n: float64(number(t, words[2]))}
	for _, word := range words[3:] {
		name, part, cut := strings.Cut(word, "/")
		if engines[name] == nil {
			engines[name] = &fleet.Engine{Name: name}
		}
		h := held{place{engine: engines[name]}, len(c.ids)}
		if cut {
			h.tokens = number(t, part)
		}
		b.held = append(b.held, h)
	}
	return b
}

// text are the tokens that are shared.
func (s *shared) text() string {
	out := make([]rune, s.tokens)
	for i, id := range s.c.ids[:s.tokens] {
		out[i] = rune(id)
	}
	return string(out)
}

func (s *shared) where() string {
	var names []string
	for _, h := range s.held {
		names = append(names, h.engine.Name)
	}
	slices.Sort(names)
	return strings.Join(names, "+")
}

// TestSharedProperty compares what random conversations share with what every two of them have in common.
func TestSharedProperty(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var all []beginning
		for range 1 + rng.IntN(12) {
			c := &conversation{}
			for range rng.IntN(8) {
				c.ids = append(c.ids, rng.Uint32N(2))
			}
			all = append(all, beginning{c: c, tokens: len(c.ids), n: 1})
		}
		want := map[string]float64{}
		for i, a := range all {
			for _, b := range all[:i] {
				if n := tokens.CommonPrefix(a.c.ids, b.c.ids); n > 0 {
					common := fmt.Sprint(a.c.ids[:n])
					want[common] = 0
					for _, c := range all {
						if tokens.CommonPrefix(c.c.ids, a.c.ids[:n]) == n {
							want[common]++
						}
					}
				}
			}
		}
		found := sharedOf(all, 1)
		for _, s := range found {
			if common := fmt.Sprint(s.c.ids[:s.tokens]); s.n != want[common] {
				t.Fatalf("seed %d: %s is shared by %g; want %g", seed, common, s.n, want[common])
			}
		}
		if len(found) != len(want) {
			t.Fatalf("seed %d: %d beginnings; want %d: %v", seed, len(found), len(want), want)
		}
	}
}
