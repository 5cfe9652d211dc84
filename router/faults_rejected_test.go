package router_test

import (
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router/connector"
	"pdrouter/router/reclaim"
)

// TestFault48DecodeTakesWhatPrefillRejects has prefill reject a request that decode takes, as engines do whose longest prompts differ: decode
// has registered blocks that prefill never writes. The client has prefill's answer at once. Decode is told, so that its blocks are free, or
// they are counted where it cannot be. If decode rejects the request too, nothing is told and nothing counted.
func TestFault48DecodeTakesWhatPrefillRejects(t *testing.T) {
	for _, row := range []struct {
		name    string
		agent   bool
		rejects bool // decode, too
	}{{"agent", true, false}, {"no agent", false, false}, {"decode rejects it later", true, true}} {
		for name, body := range map[string]string{"whole": routertest.PlainBody, "streamed": routertest.StreamBody} {
			routertest.RunVirtual(t, row.name+", "+name, func(t *testing.T) {
				s, g, f := routertest.ReclaimingFrom(t, connector.NamePush, row.agent, nil, nil)
				g.WaitWarm()
				g.WaitIdle()
				told := f.Count("decode")
				faults := map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: routertest.DoReject}}}
				if row.rejects {
					faults["decode-0"] = []routertest.Fault{{Leg: "decode", Nth: 1, Do: routertest.DoRejectLate, N: 1}}
				}
				s.SetFaults(faults)
				began := time.Now()
				r := g.Post(routertest.PathCompletions, body)
				if took := time.Since(began); r.Status != 400 || r.Body != rejection || took > 500*time.Millisecond {
					t.Errorf("after %v: status %d, %s", took, r.Status, r.Body)
				}
				s.SetFaults(nil)
				for range 5 { // decode's blocks are freed behind a request that it has served since
					g.MustServe(1, routertest.PlainBody)
					time.Sleep(time.Second)
				}
				g.WaitIdle()
				switch told = f.Count("decode") - told; {
				case row.rejects && (told != 0 || g.Router.Stats().Leaked != 0):
					t.Errorf("decode, which has rejected it too, was told %d times, and %d are counted", told, g.Router.Stats().Leaked)
				case !row.rejects && row.agent && (told != 1 || g.Router.Stats().Leaked != 0):
					t.Errorf("decode was told %d times, and %d are counted; want once, and none", told, g.Router.Stats().Leaked)
				case !row.agent && (told != 0 || g.Router.Stats().Leaked != 1 || g.Blocks("decode-0")[reclaim.CauseNoAgent.String()] == 0):
					t.Errorf("decode was told %d times, %d are counted, blocks %v; want one that is counted", told, g.Router.Stats().Leaked, g.Blocks("decode-0"))
				}
				if row.agent {
					s.CheckNothingHeld(t)
				}
			})
		}
	}
}
