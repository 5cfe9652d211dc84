package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// demoAnswer is what a client got: the text, and when its first part came.
type demoAnswer struct {
	text string
	id   string // x-request-id
	ttft time.Duration
}

// compare sends one request to the engine alone and through the gateway.
func (f *demoFleet) compare(ctx context.Context, number int, ask demoAsk) (demoRow, error) {
	row := demoRow{number: number, label: ask.label()}
	want, err := send(ctx, f.alone, ask)
	if err != nil {
		return row, fmt.Errorf("engine alone: %w", err)
	}
	got, err := send(ctx, f.client, ask)
	if err != nil {
		return row, fmt.Errorf("gateway: %w", err)
	}
	if want.text == "" {
		return row, errors.New("engine alone: empty answer")
	}
	row.ttft, row.equal = got.ttft, got.text == want.text
	row.summary, err = f.books(ctx, got.id)
	return row, err
}

// send asks one question over the OpenAI API. A stream that ends without its terminal event is an error.
func send(ctx context.Context, base string, ask demoAsk) (demoAnswer, error) {
	body := map[string]any{"model": demoModel, "max_tokens": ask.tokens, "temperature": 0, "stream": ask.stream}
	if ask.chat {
		body["messages"] = []map[string]string{{"role": "user", "content": ask.prompt}}
	} else {
		body["prompt"] = ask.prompt
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return demoAnswer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+ask.route(), bytes.NewReader(raw))
	if err != nil {
		return demoAnswer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	start := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return demoAnswer{}, err
	}
	defer resp.Body.Close()
	a := demoAnswer{id: resp.Header.Get("X-Request-Id")}
	if resp.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return a, fmt.Errorf("status %d: %s", resp.StatusCode, raw)
	}
	if ask.stream {
		return a, a.readStream(resp.Body, start)
	}
	raw, err = io.ReadAll(resp.Body)
	a.ttft = time.Since(start)
	if err == nil {
		a.text, err = content(raw)
	}
	return a, err
}

// readStream takes the text out of server-sent events until the terminal one.
func (a *demoAnswer) readStream(r io.Reader, start time.Time) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	var text strings.Builder
	for lines.Scan() {
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		if data == "[DONE]" {
			a.text = text.String()
			return nil
		}
		part, err := content([]byte(data))
		if err != nil {
			return err
		}
		if part != "" && a.ttft == 0 {
			a.ttft = time.Since(start)
		}
		text.WriteString(part)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// content returns the text of an answer or of one event of it, whichever route it came from.
func content(raw []byte) (string, error) {
	var v struct {
		Error   *struct{ Message string } `json:"error"`
		Choices []struct {
			Text    string                   `json:"text"`
			Message struct{ Content string } `json:"message"`
			Delta   struct{ Content string } `json:"delta"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return "", err
	}
	if v.Error != nil {
		return "", errors.New(v.Error.Message)
	}
	text := ""
	for _, c := range v.Choices {
		text += c.Text + c.Message.Content + c.Delta.Content
	}
	return text, nil
}

// gauge reads one unlabelled series from a metrics page.
func (f *demoFleet) gauge(ctx context.Context, url, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, found := strings.CutPrefix(lines.Text(), name+" "); found {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, errors.Join(fmt.Errorf("%s has no %s", url, name), lines.Err())
}

// settled waits until every block of every engine is free again.
func (f *demoFleet) settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second) // longer than a lease
	defer cancel()
	for _, e := range f.engines {
		page := "http://" + e.address + "/metrics"
		for {
			free, err := f.gauge(ctx, page, `refengine_kv_blocks{state="free"}`)
			if err != nil {
				return err
			}
			total, err := f.gauge(ctx, page, `refengine_kv_blocks{state="total"}`)
			if err != nil {
				return err
			}
			if free == total {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s: %.0f of %.0f blocks are free: some were never given back", e.name, free, total)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}
