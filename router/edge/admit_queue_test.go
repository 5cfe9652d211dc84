package edge

import (
	"testing"

	"pdrouter/router/config"
	"pdrouter/router/exchange"
	"pdrouter/router/openai"
)

// TestStandingOfBody orders the queue by the body's priority where its caller has the scope, and by the head before it.
func TestStandingOfBody(t *testing.T) {
	for _, row := range []struct {
		urgent         bool
		header         string
		priority, want int
	}{{true, "", -5, 5}, {true, "-7", -5, 7}, {true, "x", -5, 5}, {true, "", -9000, config.MaxPriority}, {false, "-7", -5, 0}, {true, "", 0, 0}} {
		q := &request{snapshot: &Snapshot{Config: new(config.Config)}, Request: exchange.Request{Body: &openai.Body{Priority: row.priority, Urgent: row.urgent}}}
		if got := q.standing([]byte(row.header)); got != row.want {
			t.Errorf("%+v: standing %d", row, got)
		}
	}
}
