//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// load is requests whose answers one engine alone has given.
type load struct {
	prompts []string
	want    map[string]string
}

func newLoad(t *testing.T, alone string) *load {
	l := &load{want: map[string]string{}}
	common := strings.Repeat("they all begin alike, ", 20)
	for i := range 8 {
		p := fmt.Sprintf("%sbut request %d goes on by itself", common, i)
		if i%2 == 0 {
			p = fmt.Sprintf("request %d is like no other: %s", i, strings.Repeat(strconv.Itoa(i*7919)+" ", 60))
		}
		status, got := complete(t.Context(), alone, p, 12, false)
		if status != http.StatusOK || got == "" {
			t.Fatalf("status %d, %q", status, got)
		}
		l.prompts = append(l.prompts, p)
		l.want[p] = got
	}
	return l
}

// run asks the load's requests, eight at a time, until stop is called, which returns how many were asked. Every answer must
// be what one engine gives. If ended is not nil a request may end early with an error, as one does whose engine has died: it is
// given how, and the text until then must be the beginning of what one engine gives. It is called by several at once.
func (l *load) run(t *testing.T, url string, ended func(text, err string)) (stop func() int) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	n := 0
	for i, p := range l.prompts {
		wg.Go(func() {
			for round := i; ctx.Err() == nil; round++ {
				got := say(context.WithoutCancel(ctx), url, p, 12, round%2 == 0)
				mu.Lock()
				n++
				mu.Unlock()
				switch {
				case got.err == "" && got.status == http.StatusOK && got.text == l.want[p]:
				case ended != nil && got.err != "" && strings.HasPrefix(l.want[p], got.text):
					ended(got.text, got.err)
				default:
					t.Errorf("request beside the others: status %d, %q, %s; want %q", got.status, got.text, got.err, l.want[p])
					return
				}
			}
		})
	}
	return func() int { cancel(); wg.Wait(); return n }
}

// answer is what came of a completion.
type answer struct {
	status int    // 0 if there was none
	text   string // as far as it came
	err    string // why it is not whole
}

// complete asks for a completion and returns its text; status is 0 if there was no answer, or only a part of one.
func complete(ctx context.Context, url, prompt string, n int, stream bool) (status int, text string) {
	a := say(ctx, url, prompt, n, stream)
	switch {
	case a.err == "":
		return a.status, a.text
	case a.status == http.StatusOK:
		return 0, a.err
	}
	return a.status, a.err
}

// say asks for a completion of n tokens.
func say(ctx context.Context, url, prompt string, n int, stream bool) (got answer) {
	body, _ := json.Marshal(map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": n, "temperature": 0, "stream": stream})
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return answer{err: err.Error()}
	}
	q.Header.Set("Content-Type", "application/json")
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return answer{err: err.Error()}
	}
	defer a.Body.Close()
	got.status = a.StatusCode
	said, err := io.ReadAll(a.Body)
	parts := [][]byte{said}
	if stream && a.StatusCode == http.StatusOK {
		parts = nil
		whole := false
		events := strings.Split(string(said), "\n\n")
		for _, e := range events[:len(events)-1] { // the last has no end
			d, ok := strings.CutPrefix(e, "data: ")
			if whole = d == "[DONE]"; ok && !whole {
				parts = append(parts, []byte(d))
			}
		}
		if err == nil && !whole {
			got.err = "no terminal event: " + string(said)
		}
	}
	if err != nil {
		got.err = err.Error()
		if !stream {
			return got
		}
	}
	for _, p := range parts {
		var c completion
		if err := json.Unmarshal(p, &c); err != nil || c.Error != nil || a.StatusCode != http.StatusOK {
			got.err = string(p)
			return got
		}
		for _, one := range c.Choices {
			got.text += one.Text
		}
	}
	return got
}
