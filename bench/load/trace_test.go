package load

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const twoLines = `{"timestamp": 3001, "input_length": 513, "output_length": 7, "hash_ids": [0, 4]}
{"timestamp":3001,"input_length":512,"output_length":1,"hash_ids":[0]}
`

func TestReadTrace(t *testing.T) {
	got, err := ReadTrace(strings.NewReader(twoLines))
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{{0, 513, 7, []int{0, 4}}, {0, 512, 1, []int{0}}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(Request{})); d != "" {
		t.Error(d)
	}
}

// TestTraceOfAnyDay: a trace may begin at any time, such as that of the clock.
func TestTraceOfAnyDay(t *testing.T) {
	var lines strings.Builder
	for i := range 100 {
		fmt.Fprintf(&lines, `{"timestamp": %d, "input_length": 1, "output_length": 1, "hash_ids": [0]}`+"\n", 1_700_000_000_000+100*i)
	}
	trace, err := ReadTrace(strings.NewReader(lines.String()))
	if err != nil {
		t.Fatal(err)
	}
	if trace[0].At != 0 || trace[99].At != 9900*ms {
		t.Errorf("from %v to %v; want 0 to 9.9s", trace[0].At, trace[99].At)
	}
	if taken := AtRate(trace, 5*time.Second, 4, 1); len(taken) == 0 {
		t.Error("no request is taken of it")
	}
}

// TestReadTraceRefuses: whatever is not the format is told with its line.
func TestReadTraceRefuses(t *testing.T) {
	for name, c := range map[string]struct{ line, want string }{
		"no object":       {`[1]`, "cannot unmarshal"},
		"an empty line":   {``, "it is empty; want a JSON object"},
		"cut":             {`{"timestamp": 3001, "input_len`, "unexpected EOF"},
		"two objects":     {`{"timestamp":3001,"input_length":1,"output_length":1,"hash_ids":[0]} {}`, "behind the object"},
		"unknown":         {`{"timestamp":3001,"input_length":1,"output_length":1,"hash_ids":[0],"model":"x"}`, `unknown field "model"`},
		"no ids":          {`{"timestamp":3001,"input_length":1,"output_length":1}`, "want timestamp"},
		"no time":         {`{"input_length":1,"output_length":1,"hash_ids":[0]}`, "want timestamp"},
		"before the last": {`{"timestamp":3000,"input_length":1,"output_length":1,"hash_ids":[0]}`, "before that of the line above"},
		"below 0":         {`{"timestamp":-1,"input_length":1,"output_length":1,"hash_ids":[0]}`, "timestamp is -1"},
		"half a ms":       {`{"timestamp":3001.5,"input_length":1,"output_length":1,"hash_ids":[0]}`, "cannot unmarshal"},
		"too late":        {`{"timestamp":9223372036854775807,"input_length":1,"output_length":1,"hash_ids":[0]}`, "timestamp is 9223372036854775807"},
		"no prompt":       {`{"timestamp":3001,"input_length":0,"output_length":1,"hash_ids":[]}`, "input_length is 0"},
		"a long answer":   {`{"timestamp":3001,"input_length":1,"output_length":10000000000000,"hash_ids":[0]}`, "output_length 10000000000000; want 1 to 16777216"},
		"no answer":       {`{"timestamp":3001,"input_length":1,"output_length":0,"hash_ids":[0]}`, "output_length 0"},
		"too few ids":     {`{"timestamp":3001,"input_length":513,"output_length":1,"hash_ids":[0]}`, "1 hash_ids for 513 tokens"},
		"too many ids":    {`{"timestamp":3001,"input_length":512,"output_length":1,"hash_ids":[0,1]}`, "2 hash_ids for 512 tokens"},
		"an id below 0":   {`{"timestamp":3001,"input_length":1,"output_length":1,"hash_ids":[-1]}`, "hash id is -1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadTrace(strings.NewReader(twoLines + c.line + "\n"))
			if err == nil || !strings.Contains(err.Error(), "line 3: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v; want line 3 and %q", err, c.want)
			}
		})
	}
	if _, err := ReadTrace(strings.NewReader("")); err == nil {
		t.Error("a trace without a line is taken")
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add(twoLines)
	f.Fuzz(func(t *testing.T, text string) {
		trace, err := ReadTrace(strings.NewReader(text))
		if err != nil {
			return
		}
		if s := ShapeOf(trace); s.requests != len(trace) || s.hits < 0 || s.hits > 1 {
			t.Errorf("%+v", s)
		}
	})
}

// traceAt is a trace whose requests come at these milliseconds.
func traceAt(at ...int) []Request {
	var trace []Request
	for _, a := range at {
		trace = append(trace, Request{At: time.Duration(a) * ms, Input: 1, Output: 1, Blocks: []int{0}})
	}
	return trace
}

// TestTraceIsCutAndQuicker: each leaves the trace that it was given as it is.
func TestTraceIsCutAndQuicker(t *testing.T) {
	whole := traceAt(0, 0, 0, 3000, 3000, 6001, 6001)
	for name, c := range map[string]struct{ got, want []Request }{
		"whole":        {cutTrace(whole, 0, 0), whole},
		"first 2":      {cutTrace(whole, 2, 0), traceAt(0, 0)},
		"first 99":     {cutTrace(whole, 99, 0), whole},
		"first 3 s":    {cutTrace(whole, 0, 3*time.Second), whole[:5]},
		"both":         {cutTrace(whole, 4, 3*time.Second), whole[:4]},
		"quicker":      {Quicker(whole, 2), traceAt(0, 0, 0, 1500, 1500, 3000, 3000)},
		"slower":       {Quicker(traceAt(5), .5), traceAt(10)},
		"spread out":   {SpreadOut(whole), traceAt(0, 1000, 2000, 3000, 4500, 6001, 7501)},
		"of one alone": {SpreadOut(traceAt(4)), traceAt(4)},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range c.got {
				c.got[i].At = c.got[i].At.Truncate(ms)
			}
			if d := cmp.Diff(c.want, c.got, cmp.AllowUnexported(Request{})); d != "" {
				t.Error(d)
			}
		})
	}
	if d := cmp.Diff(traceAt(0, 0, 0, 3000, 3000, 6001, 6001), whole, cmp.AllowUnexported(Request{})); d != "" {
		t.Errorf("the trace was changed: %s", d)
	}
}

// TestShapeOf: a hit is a block of a prefix that was seen before, and nothing behind the first block that was not.
func TestShapeOf(t *testing.T) {
	trace := []Request{
		{0, 1024, 10, []int{0, 1}},
		{time.Second, 1536, 20, []int{0, 1, 2}},     // 2 hits
		{2 * time.Second, 1030, 30, []int{0, 3, 1}}, // 1 hit: 1 was seen, and not behind 3
		{4 * time.Second, 512, 40, []int{0}},        // 1 hit
	}
	s := ShapeOf(trace)
	if s.hits != 4.0/9 || s.again != .25 || s.half1 != 2.0/5 || s.half2 != 2.0/4 || s.rate != 1 || s.input[0] != 4102/4 || s.output[1] != 25 || s.longest != 1536 || s.most != 40 {
		t.Errorf("%+v", s)
	}
	even, bursts := traceAt(), traceAt()
	for i := range 60 {
		even = append(even, traceAt(i*1000+1)...)
		bursts = append(bursts, traceAt(i/20*20000+1)...)
	}
	if e, b := dispersion(even, 10*time.Second), dispersion(bursts, 10*time.Second); e != 0 || b <= 5 {
		t.Errorf("variance over mean: %v of even arrivals, %v of bursts", e, b)
	}
}

// TestAtRateTakesConversationsWhole takes a part of a trace: about as many as asked for, every turn of whoever is taken, the same
// each time, and more of them at a higher rate.
func TestAtRateTakesConversationsWhole(t *testing.T) {
	trace := MadeTrace(1500, 3)
	within := 5 * time.Minute
	low, high := AtRate(trace, within, .5, 1), AtRate(trace, within, 1.5, 1)
	if d := cmp.Diff(low, AtRate(trace, within, .5, 1), cmp.AllowUnexported(Request{})); d != "" {
		t.Errorf("the same again: %s", d)
	}
	if len(low) < 150 || len(low) > 200 || len(high) < 450 || len(high) > 500 {
		t.Errorf("%d and %d requests; want a few more than 150 and 450", len(low), len(high))
	}
	turns := func(trace []Request) map[int]int {
		n := map[int]int{}
		for _, t := range trace {
			if len(t.Blocks) > 1 {
				n[t.Blocks[1]]++
			}
		}
		return n
	}
	all, more := turns(cutTrace(trace, 0, within)), turns(high)
	for id, n := range turns(low) {
		if n != all[id] || n != more[id] {
			t.Errorf("conversation %d has %d turns, %d at the higher rate; want all %d", id, n, more[id], all[id])
		}
	}
	if !slices.IsSortedFunc(high, func(a, b Request) int { return int(a.At - b.At) }) {
		t.Error("they are not in order of time")
	}
}
