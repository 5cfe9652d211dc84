package load

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Request is a request of a trace.
type Request struct {
	At            time.Duration // from the trace's beginning
	Input, Output int           // tokens
	Blocks        []int         // an id for each traceBlock tokens of the prompt, of which the last may be fewer; equal ids, equal text
}

// TraceBlock is how many tokens of a prompt one id of a trace stands for.
const TraceBlock = 512

// ReadTrace reads a trace in Mooncake's format: a JSON object a line, in order of arrival, with timestamp (ms), input_length,
// output_length (tokens) and hash_ids. Whatever else a line holds or lacks is an error with the line's number. Times count from the
// first line, whatever its timestamp is.
func ReadTrace(r io.Reader) ([]Request, error) {
	var trace []Request
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 4<<20) // a million tokens of prompt are 2,000 ids
	for nth := 1; lines.Scan(); nth++ {
		one, err := traceLine(lines.Bytes())
		if err == nil && len(trace) > 0 && one.At < trace[len(trace)-1].At {
			err = errors.New("timestamp is before that of the line above")
		}
		if err != nil {
			return nil, fmt.Errorf("bench: trace: line %d: %w", nth, err)
		}
		trace = append(trace, one)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("bench: trace: line %d: %w", len(trace)+1, err)
	}
	if len(trace) == 0 {
		return nil, errors.New("bench: trace: it has no line")
	}
	return fromFirst(trace)
}

// Bounds of a trace: sums of what it says stay far from the end of 64 bits, and one line cannot take all memory.
const (
	mostTraceTokens = 1 << 24 // of a prompt, and of an answer
	mostTraceTime   = 10 * 365 * 24 * time.Hour
)

// fromFirst has the times of a trace, which is in order, count from its first request.
func fromFirst(trace []Request) ([]Request, error) {
	begin := trace[0].At
	if lasts := trace[len(trace)-1].At - begin; lasts > mostTraceTime {
		return nil, fmt.Errorf("bench: trace: its first and its last request are %v apart; want at most %v", lasts, mostTraceTime)
	}
	for i := range trace {
		trace[i].At -= begin
	}
	return trace, nil
}

// traceLine reads one line.
func traceLine(line []byte) (Request, error) {
	var l struct {
		Timestamp *int64 `json:"timestamp"`
		Input     *int   `json:"input_length"`
		Output    *int   `json:"output_length"`
		Hashes    []int  `json:"hash_ids"`
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); errors.Is(err, io.EOF) {
		return Request{}, errors.New("it is empty; want a JSON object")
	} else if err != nil {
		return Request{}, err
	}
	if _, err := d.Token(); err != io.EOF {
		return Request{}, errors.New("something stands behind the object")
	}
	switch {
	case l.Timestamp == nil || l.Input == nil || l.Output == nil || l.Hashes == nil:
		return Request{}, errors.New("want timestamp, input_length, output_length and hash_ids")
	case *l.Timestamp < 0 || *l.Timestamp > int64(1<<62/time.Millisecond):
		return Request{}, fmt.Errorf("timestamp is %d", *l.Timestamp)
	case *l.Input < 1 || *l.Output < 1 || *l.Input > mostTraceTokens || *l.Output > mostTraceTokens:
		return Request{}, fmt.Errorf("input_length is %d and output_length %d; want 1 to %d", *l.Input, *l.Output, mostTraceTokens)
	case len(l.Hashes) != (*l.Input-1)/TraceBlock+1:
		return Request{}, fmt.Errorf("%d hash_ids for %d tokens; want one for each %d", len(l.Hashes), *l.Input, TraceBlock)
	case slices.Min(l.Hashes) < 0:
		return Request{}, fmt.Errorf("a hash id is %d", slices.Min(l.Hashes))
	}
	return Request{time.Duration(*l.Timestamp) * time.Millisecond, *l.Input, *l.Output, l.Hashes}, nil
}

// cutTrace is the beginning of a trace: its first n requests, and none of them after d. 0 is no bound.
func cutTrace(trace []Request, n int, d time.Duration) []Request {
	if n > 0 && n < len(trace) {
		trace = trace[:n]
	}
	if d > 0 {
		if end := slices.IndexFunc(trace, func(t Request) bool { return t.At > d }); end >= 0 {
			trace = trace[:end]
		}
	}
	return trace
}

// Quicker is a trace that is so many times as fast.
func Quicker(trace []Request, scale float64) []Request {
	out := slices.Clone(trace)
	for i := range out {
		out[i].At = time.Duration(float64(out[i].At) / scale)
	}
	return out
}

// SpreadOut spreads requests with the same time evenly until the time of the next ones. Mooncake's traces have steps of about
// 3 s: as they are, several requests come at one moment and then none. The last ones are spread like those before them.
func SpreadOut(trace []Request) []Request {
	out := slices.Clone(trace)
	var step time.Duration
	for from := 0; from < len(out); {
		to := from + 1
		for to < len(out) && trace[to].At == trace[from].At {
			to++
		}
		if to < len(out) {
			step = trace[to].At - trace[from].At
		}
		n := time.Duration(to - from)
		for i := from; i < to; i++ {
			nth := time.Duration(i - from)
			out[i].At += step/n*nth + step%n*nth/n // step*nth may be too large
		}
		from = to
	}
	return out
}

// traceShape is what a trace asks of a fleet.
type traceShape struct {
	requests      int
	rate          float64 // requests a second
	input, output [4]int  // tokens: mean, p50, p90, p99
	blocks        int
	hits          float64    // of the blocks, those that a cache without bounds has had as part of a prefix
	again         float64    // of the requests, those with more of a prefix than all have
	bursts        [2]float64 // variance over mean of the requests in 30 and 60 s: 1 is Poisson's
	half1, half2  float64    // hits in the first and the second half of the requests
	longest, most int        // tokens of the longest prompt and the longest answer
}

// ShapeOf sums a trace up.
func ShapeOf(trace []Request) traceShape {
	s := traceShape{requests: len(trace)}
	var input, output []time.Duration // quantiles are of these
	seen := map[int]bool{}
	var had [2]struct{ hits, blocks int }
	for i, t := range trace {
		hit := 0
		for hit < len(t.Blocks) && seen[t.Blocks[hit]] {
			hit++
		}
		for _, b := range t.Blocks {
			seen[b] = true
		}
		half := &had[2*i/len(trace)]
		half.hits += hit
		half.blocks += len(t.Blocks)
		if hit > 1 {
			s.again++
		}
		s.longest, s.most = max(s.longest, t.Input), max(s.most, t.Output)
		input, output = append(input, time.Duration(t.Input)), append(output, time.Duration(t.Output))
	}
	tokens := func(q Quantiles) [4]int { return [4]int{int(q.mean), int(q.P50), int(q.p90), int(q.P99)} }
	s.input, s.output = tokens(QuantilesOf(input)), tokens(QuantilesOf(output))
	s.blocks = had[0].blocks + had[1].blocks
	s.hits = float64(had[0].hits+had[1].hits) / float64(s.blocks)
	s.half1, s.half2 = float64(had[0].hits)/float64(max(1, had[0].blocks)), float64(had[1].hits)/float64(max(1, had[1].blocks))
	s.again /= float64(len(trace))
	if last := trace[len(trace)-1].At; last > 0 {
		s.rate = float64(len(trace)) / last.Seconds()
	}
	s.bursts = [2]float64{dispersion(trace, 30*time.Second), dispersion(trace, time.Minute)}
	return s
}

// dispersion is the variance of the requests in each window over their mean. The last window, which is not whole, is left out.
func dispersion(trace []Request, window time.Duration) float64 {
	counts := make([]float64, trace[len(trace)-1].At/window+1)
	for _, t := range trace {
		counts[t.At/window]++
	}
	if counts = counts[:len(counts)-1]; len(counts) == 0 {
		return 0
	}
	var sum, squares float64
	for _, c := range counts {
		sum += c
		squares += c * c
	}
	mean := sum / float64(len(counts))
	return (squares/float64(len(counts)) - mean*mean) / mean
}

// String is the shape for a report's notes.
func (s traceShape) String() string {
	return fmt.Sprintf("%d requests, %.2f a second (variance over mean in 30 s %.1f, in 60 s %.1f); prompts of %d tokens (mean; p50 %d, p90 %d, p99 %d, longest %d), answers of %d (%d, %d, %d, %d); %.1f %% of %d blocks are a prefix seen before (%.1f, then %.1f), in %.1f %% of the requests more than what all share",
		s.requests, s.rate, s.bursts[0], s.bursts[1], s.input[0], s.input[1], s.input[2], s.input[3], s.longest, s.output[0], s.output[1], s.output[2], s.output[3], s.most, 100*s.hits, s.blocks, 100*s.half1, 100*s.half2, 100*s.again)
}
