// Package talktest has conversations that go on in the ways that clients have them, for tests that compare every answer.
package talktest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"unicode/utf8"
)

// Talk is a conversation as its client has it: messages, or a prompt that is completed.
type Talk struct {
	Name     string // of its session
	Salt     string
	Adapter  string              // "": the model itself
	Messages []map[string]string // nil: there is a prompt
	Prompt   string
}

// Say adds what the client says.
func (t *Talk) Say(text string) {
	if t.Messages == nil {
		t.Prompt += " " + text
		return
	}
	t.add("user", text)
}

// Answered adds an answer.
func (t *Talk) Answered(text string) {
	if t.Messages == nil {
		t.Prompt += text
		return
	}
	t.add("assistant", text)
}

func (t *Talk) add(role, text string) {
	t.Messages = append(t.Messages, map[string]string{"role": role, "content": text})
}

// Walk is the course of many conversations. What they say and do is drawn.
type Walk struct {
	Rand    *rand.Rand
	Talks   int    // that there are in all
	Open    int    // of these at once
	Adapter string // that some take; "": none
	Prompts bool   // some are prompts

	begun int
	open  []*Talk
}

// Next returns a conversation that is to have a turn, and then be Answered; nil if all are over. Since its turn before, its client has gone on, edited
// or removed a message, left out the beginning of an answer, as of what a model has reasoned, taken back the answer, left another conversation to
// branch off, begun anew with less, or taken another salt or adapter.
func (w *Walk) Next() *Talk {
	if w.begun < w.Talks && len(w.open) < w.Open {
		return w.begin()
	}
	if len(w.open) == 0 {
		return nil
	}
	i := w.Rand.IntN(len(w.open))
	t := w.open[i]
	if n := len(t.Messages); n > 0 {
		w.change(t, w.Rand.IntN(n))
	} else if w.Rand.IntN(4) == 0 {
		t.Prompt = t.Prompt[:len(t.Prompt)*3/4]
	}
	t.Say(w.text())
	if len(t.Messages) > 5 || w.Rand.IntN(3) == 0 {
		w.open = slices.Delete(w.open, i, i+1)
	}
	return t
}

func (w *Walk) begin() *Talk {
	t := &Talk{Name: fmt.Sprintf("session %d", w.begun%500), Salt: []string{"", "salt a", "salt b"}[w.Rand.IntN(3)], Adapter: []string{"", w.Adapter}[w.Rand.IntN(2)]}
	if w.Prompts && w.begun%3 == 0 {
		t.Prompt = fmt.Sprintf("%d. %s", w.begun, strings.Repeat(w.text()+". ", 3))
	} else {
		t.add("system", fmt.Sprintf("you are number %d. %s", w.begun%50, strings.Repeat("be kind. ", 6)))
		t.Say(w.text())
	}
	w.open, w.begun = append(w.open, t), w.begun+1
	return t
}

// change has the client do something with its messages, of which one is drawn.
func (w *Walk) change(t *Talk, at int) {
	n := len(t.Messages)
	switch w.Rand.IntN(10) {
	case 0:
		t.Messages[at] = map[string]string{"role": t.Messages[at]["role"], "content": w.text()}
	case 1:
		t.Messages = slices.Delete(t.Messages, at, at+1)
	case 2: // the last answer is asked for again
		t.Messages = t.Messages[:max(1, n-1)]
	case 3:
		if w.begun < w.Talks {
			branch := *t
			branch.Messages = slices.Clone(t.Messages)
			w.open, w.begun = append(w.open, &branch), w.begun+1
		}
	case 4:
		t.Messages = t.Messages[:1]
	case 5:
		said := t.Messages[n-1]["content"]
		half := len(said) / 2
		for half < len(said) && !utf8.RuneStart(said[half]) {
			half++
		}
		t.Messages[n-1] = map[string]string{"role": t.Messages[n-1]["role"], "content": said[half:]}
	case 6:
		t.Salt, t.Adapter = "salt a", w.Adapter
	}
}

var words = strings.Fields("what is the number of it and where do they go when none is left to say why not")

func (w *Walk) text() string {
	said := make([]string, 4+w.Rand.IntN(12))
	for i := range said {
		said[i] = words[w.Rand.IntN(len(words))]
	}
	return strings.Join(said, " ")
}
