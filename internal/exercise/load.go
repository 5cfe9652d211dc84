package exercise

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const clients = 4 // that ask at a time

var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// ask sends streams to the gateway until ctx ends, and closes usual after enough answers. What becomes of them the gateway shows.
func ask(ctx context.Context, gateway string, usual chan<- struct{}) {
	var answers atomic.Int64
	var all sync.WaitGroup
	defer all.Wait()
	for range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				if askOnce(ctx, gateway) && answers.Add(1) == enough {
					close(usual)
				}
				select {
				case <-ctx.Done():
				case <-time.After(50*time.Millisecond + rand.N(150*time.Millisecond)):
				}
			}
		})
	}
}

// askOnce reports whether it was answered.
func askOnce(ctx context.Context, gateway string) bool {
	words := make([]string, 100+rand.IntN(200))
	for i := range words {
		words[i] = []string{"block", "cache", "prefill", "decode", "token"}[rand.IntN(5)]
	}
	body, err := json.Marshal(map[string]any{
		"model": model, "prompt": strings.Join(words, " "), "max_tokens": 8 + rand.IntN(24), "stream": true, "stream_options": map[string]any{"include_usage": true},
		"ignore_eos": true, // a prompt whose first token ends the answer is not handed over
	})
	if err != nil {
		return false
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return false
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK
}
