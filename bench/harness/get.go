package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Get is the status and the body of what a server answers to GET.
func Get(ctx context.Context, url string) (status int, said []byte, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("bench: %w", err)
	}
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return 0, nil, fmt.Errorf("bench: %w", err)
	}
	defer answer.Body.Close()
	if said, err = io.ReadAll(answer.Body); err != nil {
		return 0, nil, fmt.Errorf("bench: %s: %w", url, err)
	}
	return answer.StatusCode, said, nil
}

// GetJSON reads the answer, whatever its status: who is not ready says so in JSON too.
func GetJSON(ctx context.Context, url string, into any) error {
	_, said, err := Get(ctx, url)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(said, into); err != nil {
		return fmt.Errorf("bench: %s: %w", url, err)
	}
	return nil
}

// Post sends a body of JSON. The answer, whatever its status, is to be closed.
func Post(ctx context.Context, url string, body []byte) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	q.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return answer, nil
}
