package gateway

import (
	"testing"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/report"
)

// TestMinute: what clients have seen is counted for a minute, and told in a sentence.
func TestMinute(t *testing.T) {
	var m minute
	now := time.Unix(1_000_000, 0)
	want := func(says string) {
		t.Helper()
		if got := m.status(now); got.Says != says {
			t.Errorf("%+v; want %q", got, says)
		}
	}
	ended := func(o dispatch.Outcome, status int32, late bool) {
		m.ended(&report.Summary{Arrived: now, Outcome: o, Status: status, Late: late})
	}
	want("In the last minute no request has ended.")
	ended(dispatch.Completed, 200, false)
	ended(dispatch.ClientLeft, 499, false)
	ended(dispatch.FailedBefore, 400, false) // as an engine refused the client's request
	m.refused(now, 429)
	want("In the last minute none of 3 requests failed, and no first token came late.")
	now = now.Add(30 * time.Second)
	ended(dispatch.Completed, 200, true)
	ended(dispatch.FailedBefore, 502, false)
	ended(dispatch.FailedAfter, 200, false)
	m.refused(now, 503)
	want("In the last minute 3 of 7 requests failed; late first tokens: 1.")
	now = now.Add(45 * time.Second)
	want("In the last minute 3 of 4 requests failed; late first tokens: 1.")
	now = now.Add(time.Hour)
	want("In the last minute no request has ended.")
}
