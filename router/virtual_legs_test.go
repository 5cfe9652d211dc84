package router

import (
	"fmt"
	"net/http"
	"testing"
	"time"

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
			for _, do := range []string{doRefuse, doError, doReset, doDie, doGarbage} {
				t.Run(fmt.Sprintf("%s, %s, %s", connectorName, l, do), func(t *testing.T) {
					virtual(t, func(t *testing.T, n *memNet) { failedLeg(t, n, connectorName, l, do) })
				})
			}
		}
	}
}

func failedLeg(t *testing.T, n *memNet, connectorName, l, do string) {
	s, parts := newIn(t, n, connectorName, 2, 2)
	g := startIn(t, n, s.cfg, parts)
	if connectorName != connector.NameNone && connectorName != connector.NameSGLang {
		g.warmed()
	}
	time.Sleep(time.Minute) // kept connections close: what fails is no reset of one, which the same engine is asked again behind
	broken, others := s.d[0], s.d[1:]
	if l == "prefill" {
		broken, others = s.p[0], s.p[1:]
	}
	s.setFaults(map[string][]fault{broken.name: {{Do: do}}})
	before := len(n.log())
	r := g.post(pathCompletions, streamBody)
	if r.Status != http.StatusOK {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	if got, whole := text(t, r); got != wholeText && connectorName != connector.NameSGLang || !whole {
		t.Errorf("text %q, whole %v", got, whole)
	}
	if sum := g.last(1); sum.Attempts != 2 {
		t.Errorf("%d attempts; want 2", sum.Attempts)
	}
	addresses := map[string]bool{}
	for _, e := range others {
		addresses[e.srv.Listener.Addr().String()] = true
	}
	var failed, again time.Time
	for _, x := range n.log()[before:] {
		switch {
		case x.address == broken.srv.Listener.Addr().String() && !x.up && again.IsZero():
			failed = x.at
		case addresses[x.address] && x.request == http.MethodPost && again.IsZero():
			again = x.at
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
	g.settled()
}
