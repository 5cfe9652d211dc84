package gateway

import (
	"fmt"
	"sync"
	"time"

	"pdrouter/router/dispatch"
	"pdrouter/router/report"
)

// ClientsStatus is what clients have seen in the last minute.
type ClientsStatus struct {
	Requests int    `json:"requests"` // that have ended, those included that were refused with 5xx before engines were chosen
	Failed   int    `json:"failed"`   // of them: with 5xx, or a cut stream
	Late     int    `json:"late"`     // first tokens: they took more than three times as long after prefill as usual for the pair
	Says     string `json:"says"`     // that, in a sentence
}

// minute counts what clients have seen, by seconds. It is safe for concurrent use. The zero value has seen nothing.
type minute struct {
	mu      sync.Mutex
	seconds [60]struct {
		at int64 // of the epoch
		ClientsStatus
	}
}

// ended counts a request that was admitted. One that an engine has refused as the client's mistake has not failed.
func (m *minute) ended(s *report.Summary) {
	failed := s.Outcome == dispatch.FailedAfter || s.Outcome == dispatch.FailedBefore && s.Status >= 500
	m.count(s.Arrived.Add(s.Phases.Total), failed, s.Late)
}

// refused counts one that was not.
func (m *minute) refused(now time.Time, status int) {
	if status >= 500 {
		m.count(now, true, false)
	}
}

func (m *minute) count(now time.Time, failed, late bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := now.Unix()
	s := &m.seconds[at%60]
	if s.at != at {
		s.at, s.ClientsStatus = at, ClientsStatus{}
	}
	s.Requests++
	if failed {
		s.Failed++
	}
	if late {
		s.Late++
	}
}

// status is the sum of the last minute.
func (m *minute) status(now time.Time) (out ClientsStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.seconds {
		if now.Unix()-s.at < 60 {
			out.Requests += s.Requests
			out.Failed += s.Failed
			out.Late += s.Late
		}
	}
	switch {
	case out.Requests == 0:
		out.Says = "In the last minute no request has ended."
	case out.Failed+out.Late == 0:
		out.Says = fmt.Sprintf("In the last minute none of %d requests failed, and no first token came late.", out.Requests)
	default:
		out.Says = fmt.Sprintf("In the last minute %d of %d requests failed; late first tokens: %d.", out.Failed, out.Requests, out.Late)
	}
	return out
}
