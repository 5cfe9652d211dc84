package router

import (
	"bytes"
	"context"
	"strconv"
	"sync"
	"time"
)

// load is how many requests a stock engine says that it has in hand.
type load struct {
	running int
	waiting int // for a place, or for KV
}

// loads are looks at an engine's load: of many that ask at once one looks. It is safe for concurrent use; the zero value is ready.
type loads struct {
	mu     sync.Mutex
	at     time.Time // of the last look's beginning
	last   load
	known  bool          // what it has brought
	asking chan struct{} // closed when the look under way is over; nil if none is
}

// loadFresh is for how long a look serves whoever asks.
const loadFresh = 100 * time.Millisecond

// see returns what a look at the load shows that is no older than loadFresh; false if the engine does not tell.
func (k *loads) see(ctx context.Context, ask func(context.Context) (load, bool)) (load, bool) {
	for {
		k.mu.Lock()
		if time.Since(k.at) < loadFresh && k.asking == nil {
			defer k.mu.Unlock()
			return k.last, k.known
		}
		if other := k.asking; other != nil {
			k.mu.Unlock()
			select {
			case <-other:
				continue
			case <-ctx.Done():
				return load{}, false
			}
		}
		mine := make(chan struct{})
		k.asking, k.at = mine, time.Now()
		k.mu.Unlock()
		l, ok := ask(ctx)
		k.mu.Lock()
		k.last, k.known, k.asking = l, ok, nil
		k.mu.Unlock()
		close(mine)
		return l, ok
	}
}

// loadOf asks a stock engine how much it has in hand.
func (r *Router) loadOf(ctx context.Context, e *engine) (load, bool) {
	return e.loads.see(ctx, func(ctx context.Context) (load, bool) {
		ctx, cancel := context.WithTimeout(ctx, r.now().cfg.Timeouts.asking())
		defer cancel()
		resp, err := e.up.do(ctx, &upstreamRequest{Method: "GET", Path: "/metrics", Header: e.header[1:]})
		if err != nil {
			return load{}, false
		}
		defer resp.Close()
		text, err := resp.ReadAll(nil, 16<<20)
		if err != nil || resp.Status != 200 {
			return load{}, false
		}
		return parseLoad(text)
	})
}

// parseLoad reads an engine's metrics: the sum over its schedulers. It reports false if either number is missing.
func parseLoad(text []byte) (l load, ok bool) {
	running, waiting := false, false
	for line := range bytes.Lines(text) {
		if n, is := sample(line, "vllm:num_requests_running"); is {
			l.running, running = l.running+n, true
		} else if n, is := sample(line, "vllm:num_requests_waiting"); is {
			l.waiting, waiting = l.waiting+n, true
		}
	}
	return l, running && waiting
}

// sample returns the value of a line that is a sample of the metric, which counts.
func sample(line []byte, name string) (int, bool) {
	rest, ok := bytes.CutPrefix(line, []byte(name))
	if !ok || len(rest) == 0 || rest[0] != '{' && rest[0] != ' ' {
		return 0, false
	}
	if rest[0] == '{' {
		rest = rest[bytes.LastIndexByte(rest, '}')+1:]
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0, false
	}
	n, err := strconv.ParseFloat(string(fields[0]), 64)
	if err != nil || !(n >= 0 && n < 1<<30) {
		return 0, false
	}
	return int(n), true
}
