package router_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/refengine"
	"pdrouter/internal/refengine/refenginetest"
	"pdrouter/internal/routertest"
	"pdrouter/policies"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
)

// twoEngines starts engines a and b, which serve requests alone, and a gateway before them. It returns the engines' URLs.
func twoEngines(t *testing.T, n *routertest.Network, policy string) (*routertest.Gateway, map[string]string) {
	p, err := policies.Parse("p.yaml", []byte(policy))
	if err != nil {
		t.Fatal(err)
	}
	m, urls := config.Model{Name: "tiny", Connector: connector.NameNone}, map[string]string{}
	for _, name := range []string{"a", "b"} {
		c := refengine.Config{Name: name, Model: "tiny", MaxModelLen: 8192, Blocks: 4096, MaxRunning: 8, Shape: refengine.Shape{Layers: 1, Heads: 1, HeadDim: 2},
			PrefillCost: 50 * time.Microsecond, DecodeCost: 5 * time.Millisecond, MaxStep: 256}
		urls[name] = "http://" + refenginetest.RunOn(t, n.Listen(), c).Addr
		m.Engines = append(m.Engines, config.Engine{Name: name, URL: urls[name]})
	}
	return routertest.StartIn(t, n, config.Config{Models: []config.Model{m}}, router.Parts{Planner: p}), urls
}

func completion(prompt string, words, tokens int) string {
	return fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":%d,"ignore_eos":true,"stream":true}`, strings.Repeat(prompt+" ", words), tokens)
}

// decoded is the engine that has answered a request.
func decoded(t *testing.T, g *routertest.Gateway, body string) string {
	t.Helper()
	r := g.Post(routertest.PathCompletions, body)
	if r.Status != 200 {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	return r.Header.Get("X-Pdrouter-Decode")
}

// TestUnroutedRequestsCount has clients ask one of two engines directly. Requests through the gateway go to the other one then, whatever policy looks
// at load, and to it again when it is idle.
func TestUnroutedRequestsCount(t *testing.T) {
	for _, policy := range []string{"default: {policy: cost}", "default: {decode: least_load}", "default: {decode: prefix}", "default: {decode: session}"} {
		t.Run(policy, func(t *testing.T) {
			routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
				g, urls := twoEngines(t, n, policy)
				for i := range 40 { // the speeds are learned
					decoded(t, g, completion(fmt.Sprint(i), 50*(1+i%9), 16))
				}
				g.WaitIdle()
				if u := g.EngineStats("a").Unrouted; u != nil && u.Requests > 0 {
					t.Errorf("before there are any: %+v", u)
				}
				client, direct := n.Client(), sync.WaitGroup{}
				for i := range 24 { // 8 are at work, the others wait
					direct.Go(func() {
						resp, err := client.Post(urls["a"]+routertest.PathCompletions, "application/json", strings.NewReader(completion(fmt.Sprint("d", i), 500, 1000)))
						if err != nil {
							t.Error(err)
							return
						}
						defer resp.Body.Close()
						for buf := make([]byte, 4096); err == nil; {
							_, err = resp.Body.Read(buf)
						}
					})
				}
				defer client.CloseIdleConnections()
				time.Sleep(5 * time.Second) // two reports, with 2 s between them
				e := g.EngineStats("a")
				if u := e.Unrouted; u == nil || u.Requests != 24 || u.Waiting != 16 || u.Wait <= 0 || u.Age > 3 {
					t.Fatalf("unrouted are %+v; want 24, of which 16 wait", u)
				}
				if e.InFlight != 0 || e.Forecast.Wait < e.Unrouted.Wait || e.Forecast.Streams != 8 || g.EngineStats("b").Unrouted.Requests != 0 {
					t.Errorf("a %+v, b %+v", e, g.EngineStats("b"))
				}
				for i := range 8 {
					if got := decoded(t, g, completion(fmt.Sprint("r", i), 100, 16)); got != "b" {
						t.Errorf("%s has answered; want b", got)
					}
				}
				_, x, text := explain(t, g, "/explain/v1/completions", completion("r", 100, 16))
				if e := x.Stages[0].Engines[0]; e.Engine != "a" || e.Unrouted == nil || e.Unrouted.Requests < 16 || e.InFlight != e.Unrouted.Requests || !strings.Contains(text, `"age_seconds":`) {
					t.Errorf("explained: %s", text)
				}
				direct.Wait()
				time.Sleep(5 * time.Second)
				asked := map[string]bool{}
				for i := range 8 {
					asked[decoded(t, g, completion(fmt.Sprint("s", i), 100, 16))] = true
				}
				if len(asked) != 2 {
					t.Errorf("asked were %v; want both engines", asked)
				}
			})
		})
	}
}

// TestUnroutedReportsFade: what an engine has said counts until its next report is due, and is over soon after.
func TestUnroutedReportsFade(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		s := routertest.NewPool(t, connector.NameNone, 0, 2, nil)
		g := routertest.Start(t, s.Config, router.Parts{Planner: policies.Default()})
		busy := s.Decode[0]
		busy.Mu.Lock()
		busy.Open, busy.Works = 7, 4
		busy.Mu.Unlock()
		time.Sleep(6 * time.Second)
		if u := g.EngineStats(busy.Name).Unrouted; u == nil || u.Requests != 7 || u.Waiting != 3 {
			t.Fatalf("unrouted are %+v; want 7, of which 3 wait", u)
		}
		busy.Mu.Lock()
		busy.Mute = true
		busy.Mu.Unlock()
		were := 7
		for range 60 {
			time.Sleep(100 * time.Millisecond)
			now := 0
			if u := g.EngineStats(busy.Name).Unrouted; u != nil {
				now = u.Requests
				if u.Age < 3 && now != 7 || u.Age >= 6 {
					t.Errorf("%+v", u)
				}
			}
			if now > were {
				t.Errorf("%d requests, %d before", now, were)
			}
			were = now
		}
		if e := g.EngineStats(busy.Name); e.Unrouted != nil || e.Forecast != (fleet.EngineForecast{}) {
			t.Errorf("seconds after the last report: %+v", e)
		}
	})
}

// TestNothingIsUnrouted: while all requests come through the gateway, none is ever taken for another's, however short they are and whenever clients
// leave. So choices are as they were without reports.
func TestNothingIsUnrouted(t *testing.T) {
	routertest.Virtual(t, func(t *testing.T, n *routertest.Network) {
		g, _ := twoEngines(t, n, "default: {policy: cost}")
		draws := rand.New(rand.NewPCG(1, 2))
		var all sync.WaitGroup
		reports := 0
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			body, leaves := completion(fmt.Sprint(draws.IntN(50)), 20+draws.IntN(400), 1+draws.IntN(100)), time.Duration(0)
			if draws.IntN(4) == 0 {
				leaves = time.Duration(draws.IntN(300)) * time.Millisecond
			}
			all.Go(func() { askFor(g, body, leaves) })
			time.Sleep(time.Duration(draws.ExpFloat64() * float64(60*time.Millisecond)))
			for _, name := range []string{"a", "b"} {
				u := g.EngineStats(name).Unrouted
				if u == nil {
					continue
				}
				if reports++; u.Requests != 0 {
					t.Fatalf("%s: %+v", name, u)
				}
			}
		}
		all.Wait()
		if reports < 500 {
			t.Errorf("%d reports were seen", reports)
		}
	})
}

// askFor sends a request whose client leaves after some time, unless that is 0.
func askFor(g *routertest.Gateway, body string, leaves time.Duration) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if leaves > 0 {
		defer time.AfterFunc(leaves, stop).Stop()
	}
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+routertest.PathCompletions, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	resp, err := g.Client.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
}
