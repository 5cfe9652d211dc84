package load

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// csvTraces are the formats of traces in CSV, by the names of their columns. Azure's is that of github.com/Azure/AzurePublicDataset, BurstGPT's
// that of github.com/HPMLL/BurstGPT. Other columns do not matter.
var csvTraces = []struct{ at, input, output string }{
	{"TIMESTAMP", "ContextTokens", "GeneratedTokens"},
	{"Timestamp", "Request tokens", "Response tokens"},
}

// ReadAnyTrace reads a trace in Mooncake's format (ReadTrace), or in CSV with the columns of Azure's or BurstGPT's traces. Times count from the
// first request. A trace in CSV does not say which prompts begin alike, so none do. Its requests without an answer are left out.
func ReadAnyTrace(r io.Reader) ([]Request, error) {
	in := bufio.NewReader(r)
	if first, _ := in.Peek(len(byteOrderMark)); string(first) == byteOrderMark {
		in.Discard(len(byteOrderMark)) // which are there
	}
	first, err := in.Peek(1)
	if errors.Is(err, io.EOF) {
		return nil, errors.New("bench: trace: it is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("bench: trace: %w", err)
	}
	if first[0] == '{' {
		return ReadTrace(in)
	}
	lines := csv.NewReader(in)
	lines.ReuseRecord = true
	head, err := lines.Read()
	if err != nil {
		return nil, fmt.Errorf("bench: trace: %w", err)
	}
	at, input, output := -1, -1, -1
	for _, f := range csvTraces {
		if at = slices.Index(head, f.at); at >= 0 {
			input, output = slices.Index(head, f.input), slices.Index(head, f.output)
			break
		}
	}
	if at < 0 || input < 0 || output < 0 {
		return nil, fmt.Errorf("bench: trace: its columns are %.200q; want JSON lines of Mooncake's traces, or %s, %s and %s (Azure), or %s, %s and %s (BurstGPT)", strings.Join(head, ", "),
			csvTraces[0].at, csvTraces[0].input, csvTraces[0].output, csvTraces[1].at, csvTraces[1].input, csvTraces[1].output)
	}
	var trace []Request
	for block := 1; ; {
		line, err := lines.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("bench: trace: %w", err)
		}
		one, err := csvRequest(line[at], line[input], line[output])
		if err != nil {
			nth, _ := lines.FieldPos(0)
			return nil, fmt.Errorf("bench: trace: line %d: %w", nth, err)
		}
		if one.Output == 0 {
			continue
		}
		for range (one.Input-1)/TraceBlock + 1 {
			one.Blocks = append(one.Blocks, block)
			block++
		}
		trace = append(trace, one)
	}
	if len(trace) == 0 {
		return nil, errors.New("bench: trace: it has no request with an answer")
	}
	slices.SortStableFunc(trace, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return fromFirst(trace)
}

// byteOrderMark is what spreadsheets write at the beginning of a file.
const byteOrderMark = "\ufeff"

// csvRequest reads a line. Its time is from any moment.
func csvRequest(at, input, output string) (Request, error) {
	var t Request
	if seconds, err := strconv.ParseFloat(at, 64); err == nil {
		if math.IsNaN(seconds) || math.Abs(seconds) > 1<<32 {
			return Request{}, fmt.Errorf("the time is %q", at)
		}
		t.At = time.Duration(seconds * float64(time.Second))
	} else {
		when, err := time.Parse("2006-01-02 15:04:05.999999999", strings.TrimSuffix(at, "+00:00"))
		if err != nil || when.Year() < 1970 || when.Year() > 2099 {
			return Request{}, fmt.Errorf("the time is %q; want seconds, or 2023-11-16 18:15:46.68", at)
		}
		t.At = time.Duration(when.UnixNano())
	}
	for _, n := range []struct {
		text string
		to   *int
	}{{input, &t.Input}, {output, &t.Output}} {
		x, err := strconv.ParseFloat(n.text, 64)
		if err != nil || x != math.Trunc(x) || x < 0 || x > mostTraceTokens {
			return Request{}, fmt.Errorf("%q tokens", n.text)
		}
		*n.to = int(x)
	}
	t.Input = max(1, t.Input)
	return t, nil
}
