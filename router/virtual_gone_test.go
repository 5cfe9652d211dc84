package router_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/auth"
	"pdrouter/internal/routertest"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
	"pdrouter/router/edge"
)

// TestFault58NoticedAtOnce has a client leave wherever its request may wait: less than 100 ms of virtual time behind that the request
// is over, and the legs that nothing is lost with are closed. The connection itself tells that its peer has left. How soon a kernel
// tells that of a socket cannot be measured in virtual time: TestFault58ClientLeaves shows over sockets that it does.
func TestFault58NoticedAtOnce(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull, connector.NameKVPlane, connector.NameSGLang} {
		for _, where := range []string{"prefill", "decode", "a stream", "the queue", "a pause", "a pair"} {
			switch {
			case where == "prefill" && connectorName == connector.NameNone, where == "a pair" && connectorName != connector.NamePush && connectorName != connector.NameKVPlane:
				continue
			}
			for _, body := range []string{routertest.PlainBody, routertest.StreamBody} {
				if where == "a stream" && body == routertest.PlainBody {
					continue
				}
				name := fmt.Sprintf("%s, in %s", connectorName, where)
				if body == routertest.StreamBody {
					name += ", streamed"
				}
				t.Run(name, func(t *testing.T) {
					routertest.Virtual(t, func(t *testing.T, n *routertest.Network) { leaves(t, n, connectorName, where, body) })
				})
			}
		}
	}
}

func leaves(t *testing.T, n *routertest.Network, connectorName, where, body string) {
	const noticed = 100*time.Millisecond - 1
	s, parts := routertest.NewPoolIn(t, n, connectorName, 1, 1)
	s.Config.Models[0].MaxConcurrentRequests, s.Config.Limits.Queue = 1, new(4)
	hour := int(time.Hour.Milliseconds())
	defer func() {
		s.SetFaults(nil)
		time.Sleep(10 * time.Minute) // what legs that run on take
	}()
	if where == "a pair" {
		s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Do: routertest.DoHang}}, "decode-0": {{Do: routertest.DoHang}}})
	}
	g := routertest.StartIn(t, n, s.Config, parts)
	if where != "a pair" && connectorName != connector.NameNone && connectorName != connector.NameSGLang {
		g.WaitWarm()
	}
	switch where {
	case "prefill":
		s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Do: routertest.DoSlow, N: hour}}})
	case "decode":
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoSlow, N: hour}}})
	case "a stream":
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoLateToken, N: hour}}})
	case "a pause": // the engine asks for it
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Do: routertest.DoRefuse}}})
	case "the queue":
		s.SetFaults(map[string][]routertest.Fault{"decode-0": {{Nth: 1, Do: routertest.DoSlow, N: hour}}})
		first := g.Dial(t)
		defer first.Close()
		_, _ = io.WriteString(first, routertest.RawPost(routertest.PathCompletions, body, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))))
	}
	synctest.Wait()
	conn := g.Dial(t)
	_, _ = io.WriteString(conn, routertest.RawPost(routertest.PathCompletions, body, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))))
	synctest.Wait()
	if q := g.Router.Stats().Queues[0]; where == "the queue" && q.Waiting != 1 || q.InFlight != 1 {
		t.Fatalf("the queue is %+v", q)
	}
	if where != "a pause" {
		time.Sleep(time.Second)
		synctest.Wait()
	}
	before := g.Router.Stats().Requests
	_ = conn.Close()
	left := time.Now()
	time.Sleep(noticed)
	synctest.Wait()
	if where == "the queue" {
		if q := g.Router.Stats().Queues[0]; q.Waiting != 0 || q.Denied["client_left"] != 1 {
			t.Errorf("the queue is %+v", q)
		}
		return
	}
	if before != 1 || g.Router.Stats().Requests != 0 {
		t.Fatalf("%d requests were under way, now %d", before, g.Router.Stats().Requests)
	}
	sum := g.Summary(1)
	if sum.Outcome != dispatch.ClientLeft {
		t.Errorf("summary %+v", sum)
	}
	if took := sum.Arrived.Add(sum.Phases.Total).Sub(left); took < 0 || took > noticed {
		t.Errorf("the request was over %v behind its client", took)
	} else {
		t.Logf("the request was over %v behind its client", took)
	}
	if connectorName == connector.NamePush || connectorName == connector.NamePull || where == "a pair" {
		return // legs go on until nothing is left behind, and so does what makes the engines known to each other
	}
	for _, e := range g.Router.Stats().Engines {
		if e.InFlight != 0 {
			t.Errorf("%s still has a leg", e.Name)
		}
	}
}

// leavingLimiter has a client leave while its request is admitted.
type leavingLimiter struct{ leave func() }

func (l leavingLimiter) Acquire(auth.Principal, int) (edge.Lease, edge.Allowance) {
	l.leave()
	return nil, edge.Allowance{}
}

// TestFault58LeavesBeforeItsLegs has a client leave before its request has reached an engine: no engine is asked for it.
func TestFault58LeavesBeforeItsLegs(t *testing.T) {
	for _, connectorName := range []string{connector.NameNone, connector.NamePush, connector.NamePull, connector.NameKVPlane, connector.NameSGLang} {
		for _, n := range []string{"", `"n":3,`} {
			routertest.RunVirtual(t, connectorName+" "+n, func(t *testing.T) {
				s, parts := routertest.NewPoolIn(t, routertest.NetOf(t), connectorName, 1, 1)
				s.Config.Limits.MaxParallelChoices = 8
				leave := func() {}
				parts.Limiter = leavingLimiter{func() { leave() }}
				g := routertest.Start(t, s.Config, parts)
				if connectorName != connector.NameNone && connectorName != connector.NameSGLang {
					g.WaitWarm()
				}
				conn := g.Dial(t)
				leave = func() { _ = conn.Close() }
				before := s.Cluster.Count("", "")
				body := strings.Replace(routertest.StreamBody, `"prompt"`, n+`"prompt"`, 1)
				_, _ = io.WriteString(conn, routertest.RawPost(routertest.PathCompletions, body, "Host: a", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))))
				if sum := g.Summary(1); sum.Outcome != dispatch.ClientLeft || sum.Status != 499 {
					t.Errorf("summary %+v", sum)
				}
				time.Sleep(time.Minute) // what legs that run on take
				if n := s.Cluster.Count("", "") - before; n != 0 {
					t.Errorf("engines were asked %d times", n)
				}
				g.WaitIdle()
				if q := g.Router.Stats().Queues[0]; q.InFlight != 0 {
					t.Errorf("%d places are taken", q.InFlight)
				}
			})
		}
	}
}
