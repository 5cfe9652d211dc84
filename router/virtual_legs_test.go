package router_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/connector"
)

// TestFault47FailedLegIsRetriedAtOnce breaks a leg in every way that is tried again, over every connector: in virtual time, from the
// last that the failed engine said to the first byte of the request at another engine, there are less than 50 ms.
func TestFault47FailedLegIsRetriedAtOnce(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull, connector.NameKVPlane, connector.NameSGLang} {
		for _, l := range []string{"prefill", "decode"} {
			if connectorName == connector.NameNone && l == "prefill" {
				continue
			}
			for _, do := range []string{routertest.DoRefuse, routertest.DoError, routertest.DoReset, routertest.DoDie, routertest.DoGarbage} {
				t.Run(fmt.Sprintf("%s, %s, %s", connectorName, l, do), func(t *testing.T) {
					routertest.Virtual(t, func(t *testing.T, n *routertest.Network) { failedLeg(t, n, connectorName, l, do) })
				})
			}
		}
	}
}

func failedLeg(t *testing.T, n *routertest.Network, connectorName, l, do string) {
	s, parts := routertest.NewPoolIn(t, n, connectorName, 2, 2)
	g := routertest.StartIn(t, n, s.Config, parts)
	if connectorName != connector.NameNone && connectorName != connector.NameSGLang {
		g.WaitWarm()
	}
	time.Sleep(time.Minute) // kept connections close: what fails is no reset of one, which the same engine is asked again behind
	broken, others := s.Decode[0], s.Decode[1:]
	if l == "prefill" {
		broken, others = s.Prefill[0], s.Prefill[1:]
	}
	s.SetFaults(map[string][]routertest.Fault{broken.Name: {{Do: do}}})
	before := len(n.Log())
	r := g.Post(routertest.PathCompletions, routertest.StreamBody)
	if r.Status != http.StatusOK {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	if got, whole := routertest.Text(t, r); got != routertest.WholeText && connectorName != connector.NameSGLang || !whole {
		t.Errorf("text %q, whole %v", got, whole)
	}
	if sum := g.Summary(1); sum.Attempts != 2 {
		t.Errorf("%d attempts; want 2", sum.Attempts)
	}
	addresses := map[string]bool{}
	for _, e := range others {
		addresses[e.Server.Listener.Addr().String()] = true
	}
	var failed, again time.Time
	for _, x := range n.Log()[before:] {
		switch {
		case x.Address == broken.Server.Listener.Addr().String() && !x.Up && again.IsZero():
			failed = x.At
		case addresses[x.Address] && x.Request == http.MethodPost && again.IsZero():
			again = x.At
		}
	}
	if failed.IsZero() || again.IsZero() {
		t.Fatalf("the engine failed at %v, another was asked at %v", failed, again)
	}
	if took := again.Sub(failed); took >= 50*time.Millisecond {
		t.Errorf("another engine was asked %v behind the failure", took)
	} else {
		t.Logf("another engine was asked %v behind the failure", took)
	}
	time.Sleep(10 * time.Minute) // what endings take that have nobody to talk to
	g.WaitIdle()
}
