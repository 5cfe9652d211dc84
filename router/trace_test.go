package router_test

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/connector"
	"pdrouter/router/trace"
)

// traces samples each request, or none, and keeps the traces.
type traces struct {
	none bool

	mu  sync.Mutex
	all []*trace.Trace
}

func (t *traces) Samples(trace.ID) bool { return !t.none }

func (t *traces) Export(one *trace.Trace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, one)
}

// only waits for the one trace that there is.
func (t *traces) only(test *testing.T) *trace.Trace {
	test.Helper()
	routertest.Eventually(test, "there is a trace", func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return len(t.all) == 1
	})
	return t.all[0]
}

// names are the spans of a trace by name, with their failures.
func names(t *trace.Trace) (list []string) {
	spans, _ := t.Spans()
	for _, s := range spans[1:] {
		list = append(list, strings.TrimSpace(s.Name+" "+s.Failed))
	}
	slices.Sort(list)
	return list
}

const clientParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// TestTrace: each leg of a sampled request is told its own span as parent, below the client's trace.
func TestTrace(t *testing.T) {
	for _, name := range []string{connector.NamePush, connector.NamePull, connector.NameKVPlane} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " stream ", stream), func(t *testing.T) {
				s, parts := routertest.NewPool(t, name, 1, 1, nil), router.Parts{}
				if name == connector.NameKVPlane {
					s, _, parts = routertest.NewPlane(t, 1, 1)
				}
				got := new(traces)
				parts.Tracer = got
				g := routertest.Start(t, s.Config, parts)
				g.WaitWarm()
				r := g.Post(routertest.PathCompletions, fmt.Sprintf(`{"model":"tiny","prompt":"private words","max_tokens":3,"stream":%v}`, stream), "Traceparent", clientParent, "Tracestate", "a=1")
				if r.Status != 200 {
					t.Fatalf("status %d: %s", r.Status, r.Body)
				}
				one := got.only(t)
				spans, _ := one.Spans()
				if hex.EncodeToString(one.ID[:]) != clientParent[3:35] || hex.EncodeToString(one.Parent[:]) != clientParent[36:52] || spans[0].Name != "text_completion tiny" || spans[0].Failed != "" {
					t.Errorf("the trace is %s below %x: %+v", one.ID, one.Parent, spans[0])
				}
				byRole := map[string]trace.Span{}
				for _, x := range spans[1:] {
					byRole[x.Name] = x
					if x.Begin.Before(spans[0].Begin) || x.End.Before(x.Begin) || x.End.After(spans[0].End) {
						t.Errorf("%s is from %v to %v, the request from %v to %v", x.Name, x.Begin, x.End, spans[0].Begin, spans[0].End)
					}
				}
				if _, ok := byRole["choose engines"]; !ok || len(spans) < 4 {
					t.Errorf("spans %v", names(one))
				}
				told := 0
				for _, q := range s.Cluster.All() {
					if q.Header.Get("Traceparent") == "" { // a handshake, before the request
						continue
					}
					told++
					want := fmt.Sprintf("00-%s-%x-01", one.ID, byRole[q.Leg].ID)
					if q.Header.Get("Traceparent") != want || q.Header.Get("Tracestate") != "a=1" {
						t.Errorf("%s was told %q and %q; want %q", q.Leg, q.Header.Get("Traceparent"), q.Header.Get("Tracestate"), want)
					}
				}
				if told != 2 {
					t.Errorf("%d legs were told a trace; want 2", told)
				}
				if text := fmt.Sprint(spans); strings.Contains(text, "private") || strings.Contains(text, "tok0") {
					t.Errorf("the trace has the prompt or the answer: %s", text)
				}
				if sum := g.Summary(1); sum.TraceID == nil || *sum.TraceID != one.ID {
					t.Errorf("the summary's trace is %v", sum.TraceID)
				}
			})
		}
	}
}

// TestTraceOfRetry: an attempt that fails has its spans, with the reason.
func TestTraceOfRetry(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePull, 1, 2, map[string][]routertest.Fault{"decode-0": {{Leg: "decode", Do: routertest.DoError}}})
	got := new(traces)
	g := routertest.Start(t, s.Config, router.Parts{Tracer: got, Planner: routertest.FirstUsable{}})
	if r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"a","max_tokens":3}`); r.Status != 200 {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	want := []string{"choose engines", "choose engines", "decode", "decode decode_failed", "prefill", "prefill"}
	if have := names(got.only(t)); !slices.Equal(have, want) {
		t.Errorf("spans %v; want %v", have, want)
	}
}

// TestTraceOfRefused: a request that is refused has a trace, which says why.
func TestTraceOfRefused(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePull, 1, 1, nil)
	got := new(traces)
	g := routertest.Start(t, s.Config, router.Parts{Tracer: got})
	g.Post(routertest.PathCompletions, `{"model":"other","prompt":"a"}`)
	spans, _ := got.only(t).Spans()
	if len(spans) != 1 || spans[0].Failed != "unknown_model" || spans[0].Name != routertest.PathCompletions {
		t.Errorf("spans %+v", spans)
	}
}

// TestTraceOfFan: the legs of all choices are in one trace.
func TestTraceOfFan(t *testing.T) {
	s := routertest.NewPool(t, connector.NamePull, 1, 1, nil)
	got := new(traces)
	g := routertest.Start(t, s.Config, router.Parts{Tracer: got})
	if r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"a","max_tokens":3,"n":3}`); r.Status != 200 {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	have := strings.Join(names(got.only(t)), ",")
	if strings.Count(have, "decode") != 3 || strings.Count(have, "prefill") != 3 {
		t.Errorf("spans %s", have)
	}
}

// TestTraceNotSampled: the client's decision is passed on as it came. Without one, engines are told that the request is not sampled.
func TestTraceNotSampled(t *testing.T) {
	for _, parent := range []string{"", clientParent[:53] + "00"} {
		t.Run("client sends "+parent, func(t *testing.T) {
			s := routertest.NewPool(t, connector.NamePull, 1, 1, nil)
			got := &traces{none: true}
			g := routertest.Start(t, s.Config, router.Parts{Tracer: got})
			if r := g.Post(routertest.PathCompletions, `{"model":"tiny","prompt":"a","max_tokens":3}`, "Traceparent", parent); r.Status != 200 {
				t.Fatalf("status %d: %s", r.Status, r.Body)
			}
			var told []string
			for _, q := range s.Cluster.All() {
				if context := q.Header.Get("Traceparent"); context != "" { // else it is a handshake, before the request
					told = append(told, context)
				}
			}
			if len(told) != 2 || told[0] != told[1] || len(told[0]) != 55 || !strings.HasSuffix(told[0], "-00") || parent != "" && told[0] != parent {
				t.Errorf("the legs were told %q", told)
			}
			if g.Summary(1).TraceID != nil || len(got.all) != 0 {
				t.Error("the request is traced")
			}
		})
	}
}
