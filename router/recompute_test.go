package router_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/refengine"
	"pdrouter/internal/refengine/refenginetest"
	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/report"
)

// lines keeps what is logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// count is how many lines have a text.
func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// handOffs asks a gateway in front of two reference engines for an answer every two seconds of virtual time: 30 with nothing wrong, 30 whose
// import meets the fault, and 60 with nothing wrong. After each third of the time it calls check, with the number of the third.
func handOffs(t *testing.T, stream bool, fault refengine.Fault, check func(third int, g *routertest.Gateway, log *lines)) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		pull, log := new(refengine.Pull), new(lines)
		m := config.Model{Name: "tiny", Connector: connector.NamePull}
		for _, name := range []string{"p", "d"} {
			c := refengine.Config{Name: name, Model: "tiny", Pull: pull, Shape: refengine.Shape{Layers: 1, Heads: 1, HeadDim: 2}, PrefillCost: 50 * time.Microsecond, DecodeCost: time.Millisecond}
			if name == "d" {
				for i := range 30 {
					fault.Leg, fault.Nth = refengine.ImportLeg, 30+i
					c.Faults = append(c.Faults, fault)
				}
			}
			entry := config.Engine{Name: name, URL: "http://" + refenginetest.RunOn(t, n.Listen(), c).Addr}
			if name == "p" {
				m.Prefill = []config.Engine{entry}
			} else {
				m.Decode = []config.Engine{entry}
			}
		}
		g := routertest.StartIn(t, n, config.Config{Models: []config.Model{m}, Timeouts: config.Timeouts{Health: time.Minute}},
			router.Parts{Planner: routertest.FirstUsable{}, Log: slog.New(slog.NewTextHandler(log, nil))})
		prompt, first, options := strings.Repeat("word ", 400), "", ""
		if stream {
			options = `,"stream_options":{"include_usage":true}`
		}
		for i := range 120 {
			r := g.Post(routertest.PathCompletions, fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":4,"seed":1,"stream":%v%s}`, prompt, stream, options))
			text, _ := routertest.Text(t, r)
			if first == "" {
				first = text
			}
			if r.Status != 200 || text != first || r.Header.Get("X-Pdrouter-Reason") == "" {
				t.Fatalf("request %d: status %d, %q; want %q", i, r.Status, text, first)
			}
			time.Sleep(2 * time.Second)
			if i == 29 || i == 59 || i == 119 {
				check(min(i/30, 2), g, log)
			}
		}
	})
}

// before is the latest request but one as /requests shows it: the latest one begins the next third.
func before(t *testing.T, g *routertest.Gateway) report.Shown {
	t.Helper()
	w := httptest.NewRecorder()
	g.Router.Operations().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/requests?limit=2", nil))
	var all []report.Shown
	if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil || len(all) != 2 {
		t.Fatalf("/requests: %v, %s", err, w.Body.Bytes())
	}
	return all[1]
}

// TestFault71RecomputeByReferenceEngine: a decode engine that answers 200 and computes what it has received is found within a minute, and so is its
// end. Both are logged once.
func TestFault71RecomputeByReferenceEngine(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			handOffs(t, stream, refengine.Fault{Do: refengine.Recompute}, func(third int, g *routertest.Gateway, log *lines) {
				got := g.EngineStats("d").HandOffs
				if got == nil || got.Recomputing != (third == 1) {
					t.Errorf("after %d thirds: %+v", third+1, got)
				}
				if h := before(t, g).HandOff; h == nil || h.Expected < 400 || (h.Cached < 128) != (third == 1) || (h.Cached > h.Expected-16) == (third == 1) {
					t.Errorf("after %d thirds, decode has %+v", third+1, h)
				}
				begins, ends := log.count("computes prompts that it should receive"), log.count("receives prompts again")
				if begins != min(third, 1) || ends != max(0, third-1) || log.count("pair are slow") != 0 {
					t.Errorf("after %d thirds: logged %d and %d times", third+1, begins, ends)
				}
			})
		})
	}
}

// TestFault70SlowPairOfReferenceEngines: a link that has become slow is found within a minute, and so is its end. Both are logged once.
func TestFault70SlowPairOfReferenceEngines(t *testing.T) {
	handOffs(t, true, refengine.Fault{Do: refengine.Late, Wait: 300 * time.Millisecond}, func(third int, g *routertest.Gateway, log *lines) {
		slow := g.Router.Stats().SlowPairs
		if len(slow) != third%2 || len(slow) > 0 && (slow[0].Prefill != "p" || slow[0].Decode != "d" || slow[0].Seconds < .2) {
			t.Errorf("after %d thirds: slow pairs %+v", third+1, slow)
		}
		parts := map[string]float64{}
		for _, p := range before(t, g).First {
			parts[p.Part] = p.Seconds
		}
		if slow := third == 1; (parts["transfer"] > .25) != slow || parts["decode"] > .05 {
			t.Errorf("after %d thirds, the parts are %v", third+1, parts)
		}
		begins, ends := log.count("hand-offs of a pair are slow"), log.count("hand-offs of a pair are not slow any more")
		if begins != min(third, 1) || ends != max(0, third-1) || g.EngineStats("d").HandOffs.Recomputing {
			t.Errorf("after %d thirds: logged %d and %d times", third+1, begins, ends)
		}
	})
}
