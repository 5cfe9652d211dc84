package load

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestReadAnyTrace reads traces by their columns; each request is one of its own.
func TestReadAnyTrace(t *testing.T) {
	for name, text := range map[string]string{
		"Azure":           "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,600,10\n2023-11-16 18:15:48.1805900,1,2\n",
		"BurstGPT":        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,600,10,610,API log\n5.5,ChatGPT,7,0,7,API log\n6.5,GPT-4,1,2,3,Conversation log\n",
		"a spreadsheet's": "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n5,600,10\r\n6.5,1,2\r\n",
		"Mooncake with a byte order mark": "\ufeff" + `{"timestamp": 0, "input_length": 600, "output_length": 10, "hash_ids": [1, 2]}` + "\r\n" +
			`{"timestamp": 1500, "input_length": 1, "output_length": 2, "hash_ids": [3]}` + "\r\n",
		"Mooncake": `{"timestamp": 27482, "input_length": 600, "output_length": 10, "hash_ids": [1, 2]}` + "\n" + `{"timestamp": 28982, "input_length": 1, "output_length": 2, "hash_ids": [3]}` + "\n",
	} {
		got, err := ReadAnyTrace(strings.NewReader(text))
		want := []Request{{Input: 600, Output: 10, Blocks: []int{1, 2}}, {At: 1500 * time.Millisecond, Input: 1, Output: 2, Blocks: []int{3}}}
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, d)
		}
	}
	for text, want := range map[string]string{
		"":                               "bench: trace: it is empty",
		"a,b\n":                          "bench: trace: its columns are \"a, b\"; want JSON lines of Mooncake's traces, or TIMESTAMP, ContextTokens and GeneratedTokens (Azure), or Timestamp, Request tokens and Response tokens (BurstGPT)",
		"TIMESTAMP,ContextTokens\n1,2\n": "bench: trace: its columns are \"TIMESTAMP, ContextTokens\"; want JSON lines of Mooncake's traces, or TIMESTAMP, ContextTokens and GeneratedTokens (Azure), or Timestamp, Request tokens and Response tokens (BurstGPT)",
		"TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,1\n":                                 `bench: trace: line 2: the time is "noon"; want seconds, or 2023-11-16 18:15:46.68`,
		"TIMESTAMP,ContextTokens,GeneratedTokens\n1,-1,1\n":                                   `bench: trace: line 2: "-1" tokens`,
		"TIMESTAMP,ContextTokens,GeneratedTokens\n1,1,0\n":                                    "bench: trace: it has no request with an answer",
		"TIMESTAMP,ContextTokens,GeneratedTokens\n1700-01-01 00:00:00,1,1\n":                  `bench: trace: line 2: the time is "1700-01-01 00:00:00"; want seconds, or 2023-11-16 18:15:46.68`,
		"TIMESTAMP,ContextTokens,GeneratedTokens\n-4294967296,1,1\n2099-01-01 00:00:00,1,1\n": "bench: trace: its first and its last request are 2323854h28m16s apart; want at most 87600h0m0s",
		"\ufeff":                    "bench: trace: it is empty",
		strings.Repeat("\x1b", 1e6): "bench: trace: its columns are \"" + strings.Repeat(`\x1b`, 200) + "\"; want JSON lines of Mooncake's traces, or TIMESTAMP, ContextTokens and GeneratedTokens (Azure), or Timestamp, Request tokens and Response tokens (BurstGPT)",
	} {
		if got, err := ReadAnyTrace(strings.NewReader(text)); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, %v; want %s", text[:min(len(text), 99)], got, err, want)
		}
	}
}

// TestLongTraces: a trace of years is spread without times that wrap around.
func TestLongTraces(t *testing.T) {
	trace := make([]Request, 100)
	trace[99].At = mostTraceTime
	if out := SpreadOut(trace); !slices.IsSortedFunc(out, func(a, b Request) int { return int(a.At - b.At) }) {
		t.Errorf("the 99th of 100 requests comes at %v", out[98].At)
	}
}
