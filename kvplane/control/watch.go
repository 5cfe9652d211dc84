package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"pdrouter/kvplane/transfer"
)

const (
	watchFirst   = 100 * time.Millisecond
	watchLongest = time.Second
	watchSilence = 3 * eventsInterval // a stream that says nothing for so long is broken
	maxLine      = 64 << 10
)

// Watch reads an engine's events until ctx ends, whose cause it then returns. each is told an open event whenever a
// stream begins, and a closed event with its reason when one breaks or cannot be opened for a new reason; after the
// first open, events may have been missed. That delays books and nothing else. A stream that cannot be opened or breaks
// is opened again after 100 ms, and ever more slowly up to once a second. A nil token sends none; client must not have a timeout for whole requests.
func Watch(ctx context.Context, client *http.Client, base string, token func() (string, error), each func(Event)) error {
	pause, told := watchFirst, ""
	for {
		opened, err := watchOnce(ctx, client, base, token, each)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, errNoRequest) {
			return err
		}
		why := "the engine ended the stream"
		if err != nil {
			why = err.Error()
		}
		if opened || why != told {
			each(Event{Event: Closed, Reason: why})
			told = why
		}
		if opened {
			pause = watchFirst
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
		pause = min(2*pause, watchLongest)
	}
}

// errNoRequest is the cause when a request cannot be built: no retry helps.
var errNoRequest = errors.New("bad control address")

// watchOnce reads one stream to its end and says whether it was opened at all.
func watchOnce(
	ctx context.Context, client *http.Client, base string, token func() (string, error), each func(Event),
) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := controlRequest(ctx, http.MethodGet, base, "/kvplane/v1/events", "", token)
	if err != nil {
		return false, err
	}
	silence := time.AfterFunc(watchSilence, cancel)
	defer silence.Stop()
	resp, err := client.Do(req)
	if err != nil {
		return false, fmt.Errorf("control: events of %s: %w", base, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("control: events of %s: status %d", base, resp.StatusCode)
	}
	each(Event{Event: Open})
	if err := readEvents(resp.Body, func() { silence.Reset(watchSilence) }, each); err != nil {
		return true, fmt.Errorf("control: events of %s: %w", base, err)
	}
	return true, nil
}

// readEvents reads a stream to its end and calls heard at each line, of at most maxLine bytes.
func readEvents(stream io.Reader, heard func(), each func(Event)) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		heard()
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var ev Event
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			return err
		}
		each(ev)
	}
	return lines.Err()
}

// CancelTransfer asks an engine to give a transfer up. nil means that it has taken the request.
func CancelTransfer(
	ctx context.Context, client *http.Client, base string, token func() (string, error), id transfer.ID, why string,
) error {
	path := "/kvplane/v1/transfers/" + id.String() + "/cancel"
	req, err := controlRequest(ctx, http.MethodPost, base, path, why[:min(len(why), maxWhy)], token)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("control: cancel %s at %s: %w", id, base, err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxLine)) // so that the connection can be used again
	if resp.StatusCode != http.StatusAccepted {
		return fmt.Errorf("control: cancel %s at %s: status %d", id, base, resp.StatusCode)
	}
	return nil
}

func controlRequest(ctx context.Context, method, base, path, body string, token func() (string, error)) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(base, "/")+path, strings.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("control: %w: %w", errNoRequest, err)
	}
	if token == nil {
		return req, nil
	}
	t, err := token()
	if err != nil {
		return nil, fmt.Errorf("control: token for %s: %w", base, err)
	}
	req.Header.Set("Authorization", "Bearer "+t)
	return req, nil
}
