package router_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/metadata"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/report"
)

// TestReadyBody: the body of /ready stays small however many pairs there are, and lists those that something is to be
// said about.
func TestReadyBody(t *testing.T) {
	m := config.Model{Name: "tiny", Connector: connector.NameKVPlane}
	records := &routertest.Records{ByEngine: map[string][]metadata.Record{}}
	for i := range 20 {
		p, d := fmt.Sprint("prefill-", i), fmt.Sprint("decode-", i)
		m.Prefill = append(m.Prefill, config.Engine{Name: p, URL: "http://127.0.0.1:1"})
		m.Decode = append(m.Decode, config.Engine{Name: d, URL: "http://127.0.0.1:1"})
		records.Publish(p, metadata.Prefill, uint64(100+i), "same")
		records.Publish(d, metadata.Decode, uint64(300+i), "same")
	}
	r, err := router.New(config.Config{Models: []config.Model{m}}, router.Parts{Records: records})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ready := func() (s router.Stats) {
		t.Helper()
		w := httptest.NewRecorder()
		r.Operations().ServeHTTP(w, httptest.NewRequest("GET", "/ready", nil))
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
			t.Fatalf("%d %s: %v", w.Code, w.Body, err)
		}
		return s
	}
	if s := ready(); len(s.Pairs) != router.MaxCold || s.PairsTotal != 400 || s.PairsWarm != 0 || s.Pairs[0].Warm {
		t.Errorf("%d pairs, %d in all, %d warm; want %d, 400 and 0", len(s.Pairs), s.PairsTotal, s.PairsWarm, router.MaxCold)
	}
	gone := r.Debug().Engine("decode-3")
	gone.SetDraining()
	gone.SetDown()
	s := ready()
	if s.PairsTotal != 380 {
		t.Errorf("%d pairs in all while an engine is drained; want 380", s.PairsTotal)
	}
	for _, p := range s.Pairs {
		if p.Decode == "decode-3" {
			t.Errorf("a pair of a drained engine is told of: %+v", p)
		}
	}
	for _, e := range s.Engines {
		if want := map[bool]string{true: "draining", false: "unchecked"}[e.Name == "decode-3"]; e.State != want {
			t.Errorf("%s is %s, as %s; want %s", e.Name, e.State, e.Why, want)
		}
	}
	if got := r.Pairs(); len(got) != 400 {
		t.Errorf("%d pairs in all; want 400", len(got))
	}
}

// TestStatus: the status says in which lists each engine is, lists pairs that are not ready before others, and stays of bounded size.
func TestStatus(t *testing.T) {
	both := config.Engine{Name: "both", URL: "http://127.0.0.1:1"}
	m := config.Model{Name: "tiny", Connector: connector.NameKVPlane, Engines: []config.Engine{both}}
	for i := range 20 {
		m.Prefill = append(m.Prefill, config.Engine{Name: fmt.Sprint("prefill-", i), URL: "http://127.0.0.1:1"})
		m.Decode = append(m.Decode, config.Engine{Name: fmt.Sprint("decode-", i), URL: "http://127.0.0.1:1"})
	}
	lone := config.Model{Name: "lone", Connector: connector.NameNone, Engines: []config.Engine{{Name: "alone", URL: "http://127.0.0.1:1"}}}
	r, err := router.New(config.Config{Models: []config.Model{m, lone}}, router.Parts{Records: &routertest.Records{ByEngine: map[string][]metadata.Record{}}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := r.Status()
	if len(s.Pairs) != router.MaxPairs || s.PairsTotal != 440 || len(s.Queues) != 2 {
		t.Errorf("%d pairs of %d, %d queues; want %d of 440, and 2", len(s.Pairs), s.PairsTotal, len(s.Queues), router.MaxPairs)
	}
	places := map[string]string{}
	for _, e := range s.Engines {
		places[e.Name] = fmt.Sprint(e.Places)
	}
	for name, want := range map[string]string{"both": "[{tiny prefill} {tiny decode}]", "prefill-3": "[{tiny prefill}]", "decode-7": "[{tiny decode}]", "alone": "[{lone engines}]"} {
		if places[name] != want {
			t.Errorf("%s is in %s; want %s", name, places[name], want)
		}
	}
	pair := func(prefill string, warm bool) metadata.PairState {
		return metadata.PairState{Prefill: prefill, Decode: "d", Pairable: true, Warm: warm}
	}
	sorted := router.PairsOf(router.Stats{
		Pairs:    []metadata.PairState{pair("a", true), pair("b", false), pair("c", true)},
		PairsOut: []fleet.PairOut{{Prefill: "a", Decode: "d", State: "closed"}, {Prefill: "c", Decode: "d", State: "open"}},
		Moved:    []report.Moved{{Prefill: "a", Decode: "d", Bytes: 7}},
	})
	if got := fmt.Sprint(sorted[0].Prefill, sorted[1].Prefill, sorted[1].Circuit, sorted[2].Prefill, sorted[2].Circuit, sorted[2].Bytes); got != "bcopena7" {
		t.Errorf("the pairs are %+v; want b, c with an open circuit, a with 7 bytes", sorted)
	}
}
