package demo

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
	"sync"
	"time"
)

// Answer is what a client got: the text, and when its first part came.
type Answer struct {
	Text string
	ID   string // x-request-id
	ttft time.Duration
}

// compareAll compares requests that are sent at once, and prints a row for each.
func (f *Fleet) compareAll(ctx context.Context, asks []Ask, table *Table) error {
	rows, errs := make([]Row, len(asks)), make([]error, len(asks))
	var wg sync.WaitGroup
	for i, ask := range asks {
		wg.Go(func() { rows[i], errs[i] = f.compare(ctx, ask) })
	}
	wg.Wait()
	for i, row := range rows {
		if errs[i] != nil {
			return fmt.Errorf("request %d (%s): %w", table.rows+1, asks[i].label(), errs[i])
		}
		table.print(row)
	}
	return nil
}

// compare sends one request to the engine alone and through the gateway.
func (f *Fleet) compare(ctx context.Context, ask Ask) (Row, error) {
	row := Row{label: ask.label()}
	want, err := Send(ctx, f.Alone, ask)
	if err != nil {
		return row, fmt.Errorf("engine alone: %w", err)
	}
	got, err := Send(ctx, f.Client, ask)
	if err != nil {
		return row, fmt.Errorf("gateway: %w", err)
	}
	if want.Text == "" {
		return row, errors.New("engine alone: empty answer")
	}
	row.ttft, row.equal = got.ttft, got.Text == want.Text
	row.summary, err = f.books(ctx, got.ID)
	return row, err
}

// Send asks one question over the OpenAI API. A stream that ends without its terminal event is an error.
func Send(ctx context.Context, base string, ask Ask) (Answer, error) {
	body := map[string]any{"model": Model, "max_tokens": ask.tokens, "temperature": 0, "stream": ask.stream}
	if ask.salt != "" {
		body["cache_salt"] = ask.salt
	}
	if ask.messages != nil {
		body["messages"] = ask.messages
	} else if ask.chat {
		body["messages"] = []map[string]string{{"role": "user", "content": ask.prompt}}
	} else {
		body["prompt"] = ask.prompt
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return Answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+ask.route(), bytes.NewReader(raw))
	if err != nil {
		return Answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if ask.session != "" {
		req.Header.Set("X-Session-Id", ask.session)
	}
	start := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	a := Answer{ID: resp.Header.Get("X-Request-Id")}
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
		a.Text, err = Content(raw)
	}
	return a, err
}

// readStream takes the text out of server-sent events until the terminal one.
func (a *Answer) readStream(r io.Reader, start time.Time) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	var text strings.Builder
	for lines.Scan() {
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		if data == "[DONE]" {
			a.Text = text.String()
			return nil
		}
		part, err := Content([]byte(data))
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

// Content returns the text of an answer or of one event of it, whichever route it came from.
func Content(raw []byte) (string, error) {
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

// Gauge reads one unlabelled series from a metrics page.
func (f *Fleet) Gauge(ctx context.Context, url, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
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

// Settled waits until every block of every engine is free again.
func (f *Fleet) Settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second) // longer than a lease
	defer cancel()
	for _, e := range f.Engines {
		page := "http://" + e.Address + "/metrics"
		for {
			free, err := f.Gauge(ctx, page, `refengine_kv_blocks{state="free"}`)
			if err != nil {
				return err
			}
			total, err := f.Gauge(ctx, page, `refengine_kv_blocks{state="total"}`)
			if err != nil {
				return err
			}
			if free == total {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s: %.0f of %.0f blocks are free: some were never given back", e.Name, free, total)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}
