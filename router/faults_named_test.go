package router

import "testing"

// TestFault47StockPlainNamesWait has prefill's answer lost where prefill knows requests by the very id that they are given: it is asked
// again under it only when a later request has come to its end there, it was told that what it may hold was taken, and another one has
// come to its end. Without an agent, or where nothing comes to its end, it is not asked again: what decode holds is counted.
func TestFault47StockPlainNamesWait(t *testing.T) {
	for _, row := range []struct {
		name  string
		agent bool
	}{{"agent", true}, {"no agent", false}} {
		unhurried(t, row.name, func(t *testing.T) {
			s, g, f := reclaimingWith(t, ConnectorPush, row.agent, func(c *Config) {
				c.Models[0].Prefill[0].PlainRequestIDs = true
				c.Timeouts.Ending = longEnough
			})
			before := s.c.count("", "")
			s.setFaults(map[string][]fault{"prefill-0": {{Leg: "prefill", Nth: 1, Do: doResetLate, N: 100}}})
			if r := g.post(pathCompletions, plainBody); r.Status != 200 {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			if row.agent {
				s.noHeld(t)
			} else {
				eventually(t, "what may stay held is counted", func() bool { return g.blocks("decode-0")[strandMay.String()] > 0 })
			}
			g.settled()
			var order []string
			lost := ""
			for _, q := range s.c.all()[before:] {
				switch {
				case q.Engine != "prefill-0":
				case q.Leg == "prefill" && lost == "":
					lost = q.ID
				case q.Leg == "prefill" && q.ID == lost:
					order = append(order, "again")
				case q.Leg == "alone":
					order = append(order, "later")
				}
			}
			told := f.count("prefill-0 cmpl-" + lost)
			if row.agent && (len(order) < 3 || order[len(order)-1] != "again" || order[len(order)-2] != "later" || order[len(order)-3] != "later" || told != 1) {
				t.Errorf("prefill got %v and was told %d times; want two later requests, a message between them, and then again", order, told)
			}
			for _, o := range order {
				if !row.agent && o == "again" {
					t.Error("prefill was asked again under the same name")
				}
			}
			if n := f.count("decode"); n != 0 {
				t.Errorf("decode was told %d times", n)
			}
		})
	}
}
