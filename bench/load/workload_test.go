package load

import (
	"math"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// published are the figures of the public trace that madeTrace is to reproduce: its first 4,000 requests.
func published() traceShape {
	return traceShape{
		requests: 4000, rate: 3.07, input: [4]int{13312, 7874, 28981, 94410}, output: [4]int{347, 358, 605, 1157}, blocks: 105904,
		hits: .326, again: .334, bursts: [2]float64{1.91, 2.13}, half1: .289, half2: .364, longest: 123192, most: 2000,
	}
}

// TestMadeTrace: the built-in workload has the shape of the public trace, is the same for the same seed, and is a trace.
func TestMadeTrace(t *testing.T) {
	trace := MadeTrace(4000, 0)
	for i, one := range trace {
		if i > 0 && one.At < trace[i-1].At || one.At < 0 || one.Input < 1 || one.Output < 1 || len(one.Blocks) != (one.Input-1)/TraceBlock+1 || one.Blocks[0] != 0 {
			t.Fatalf("request %d: %+v", i, one)
		}
	}
	got := ShapeOf(trace)
	t.Log(got)
	compareShapes(t, published(), got)
	few := MadeTrace(50, 1)
	if d := cmp.Diff(few, MadeTrace(50, 1), cmp.AllowUnexported(Request{})); d != "" {
		t.Error(d)
	}
	if other := MadeTrace(50, 2); other[0].At == few[0].At && other[1].At == few[1].At {
		t.Error("another seed gives the same trace")
	}
}

// TestMadeTraceBesideAFile prints the built-in workload beside a trace's file, and holds it against it.
func TestMadeTraceBesideAFile(t *testing.T) {
	path := os.Getenv("PDROUTER_TRACE")
	if path == "" {
		t.Skip("PDROUTER_TRACE names no trace in Mooncake's format")
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	trace, err := ReadTrace(f)
	if err != nil {
		t.Fatal(err)
	}
	want, got := ShapeOf(trace), ShapeOf(MadeTrace(len(trace), 0))
	t.Logf("the file: %v", want)
	t.Logf("built in: %v", got)
	compareShapes(t, want, got)
	if d := cmp.Diff(published(), want, cmp.AllowUnexported(traceShape{}), cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < .01 })); d != "" {
		t.Logf("the file is not the one whose figures this package knows: %s", d)
	}
}

// compareShapes wants figures that differ by no more than those of two seeds do.
func compareShapes(t *testing.T, want, got traceShape) {
	t.Helper()
	near := func(what string, want, got, most float64) {
		if math.Abs(got/want-1) > most {
			t.Errorf("%s: got %.4g; want %.4g ± %.0f %%", what, got, want, 100*most)
		}
	}
	near("rate", want.rate, got.rate, .08)
	for i, what := range []string{"mean", "p50", "p90", "p99"} {
		most := []float64{.1, .1, .1, .25}[i]
		near("prompts, "+what, float64(want.input[i]), float64(got.input[i]), most)
		near("answers, "+what, float64(want.output[i]), float64(got.output[i]), most)
	}
	near("hits", want.hits, got.hits, .1)
	near("hits of the first half", want.half1, got.half1, .15)
	near("hits of the second half", want.half2, got.half2, .15)
	near("requests that go on", want.again, got.again, .15)
	near("variance over mean in 30 s", want.bursts[0], got.bursts[0], .5)
	near("variance over mean in 60 s", want.bursts[1], got.bursts[1], .5)
}
