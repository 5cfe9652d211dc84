package trace

import (
	"strings"
	"testing"
	"time"
)

type tracer struct{ got []*Trace }

func (t *tracer) Samples(ID) bool { return true }

func (t *tracer) Export(one *Trace) { t.got = append(t.got, one) }

// TestFinish: a trace is exported once, with its open spans ended, and does not change after that.
func TestFinish(t *testing.T) {
	to, at := new(tracer), time.Unix(100, 0)
	in, one := Begin(to, "", at)
	prefill, decode := new(int), new(int)
	one.Begin(prefill, "prefill", Client, at)
	one.Begin(decode, "decode", Client, at)
	if one.Context(nil) != in || one.Context(prefill) == in || one.Context(prefill) == one.Context(decode) {
		t.Errorf("contexts %q, %q, %q", in, one.Context(prefill), one.Context(decode))
	}
	one.End(prefill, at.Add(1), "")
	if one.Context(prefill) != in {
		t.Error("what is over is still a parent")
	}
	one.Finish("a", at.Add(2), "deadline")
	one.End(decode, at.Add(3), "late")
	one.Event(decode, "late", at)
	one.Add("late", at, at)
	one.Finish("b", at.Add(4), "")
	spans, omitted := one.Spans()
	if len(to.got) != 1 || len(spans) != 3 || omitted != 0 || spans[0].Name != "a" || spans[0].Failed != "deadline" ||
		!spans[1].End.Equal(at.Add(1)) || !spans[2].End.Equal(at.Add(2)) || spans[2].Failed != "" || spans[2].Events != nil {
		t.Errorf("exported %d times: %+v", len(to.got), spans)
	}
}

func TestSpansAreBounded(t *testing.T) {
	_, one := Begin(new(tracer), "", time.Unix(100, 0))
	for range maxSpans + 9 {
		one.Add("x", time.Time{}, time.Time{})
	}
	one.Finish("a", time.Unix(101, 0), "")
	if spans, omitted := one.Spans(); len(spans) != maxSpans || omitted != 10 {
		t.Errorf("%d spans and %d omitted", len(spans), omitted)
	}
}

// TestNone: nothing is recorded of a request that is not sampled, and nothing fails.
func TestNone(t *testing.T) {
	var none *Trace
	none.Begin(nil, "a", Client, time.Time{})
	none.Event(nil, "a", time.Time{})
	none.End(nil, time.Time{}, "")
	none.Add("a", time.Time{}, time.Time{})
	none.Finish("a", time.Time{}, "")
}

// FuzzParse: whatever a client sends, what is made of it is well formed, and says what the client said.
func FuzzParse(f *testing.F) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	f.Add(parent, "a=1", "b=2")
	f.Add("01"+parent[2:]+"-x", "", "\n")
	f.Fuzz(func(t *testing.T, sent, s1, s2 string) {
		in := Parse([][]byte{[]byte(sent)}, [][]byte{[]byte(s1), []byte(s2)})
		if in == "" {
			return
		}
		was, state := in.Fields()
		id, span, sampled, _ := in.read()
		if was != sent || strings.ContainsAny(state, "\r\n") || len(state) > MaxState || id == (ID{}) || span == (SpanID{}) {
			t.Errorf("%q is read as %q", sent, in)
		}
		to := new(tracer)
		context, one := Begin(to, in, time.Unix(100, 0))
		if sampled != (one != nil) || !sampled && context != in {
			t.Fatalf("sampled %v, %v", sampled, one)
		}
		if one != nil {
			p, s := context.Fields()
			if !isParent([]byte(p)) || s != state || p[idAt:idEnd] != sent[idAt:idEnd] || one.Parent != span {
				t.Errorf("%q is continued as %q", sent, context)
			}
		}
	})
}

// never samples no request.
type never struct{ tracer }

func (*never) Samples(ID) bool { return false }

// BenchmarkNotSampled is what tracing costs a request that is not sampled, besides the longer heads of its legs.
func BenchmarkNotSampled(b *testing.B) {
	to, at := new(never), time.Unix(100, 0)
	b.ReportAllocs()
	for b.Loop() {
		Begin(to, "", at)
	}
}
