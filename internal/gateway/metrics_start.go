package gateway

import (
	"net/http"
	"strconv"

	"pdrouter/auth"
	"pdrouter/policies"
	"pdrouter/router/config"
	"pdrouter/router/dispatch"
	"pdrouter/router/edge"
	"pdrouter/router/firsttoken"
	"pdrouter/router/migration"
	"pdrouter/router/reason"
	"pdrouter/router/report"
)

// expect makes the series of each model exist at 0 before its first request, without those of its engines and pairs. It may be
// called again.
func (m *metrics) expect(models []config.Model) {
	for _, model := range models {
		m.of(model.Name)
		m.transferParams.WithLabelValues(model.Name)
		for _, result := range []string{"done", "failed", "unsupported"} {
			m.continuations.WithLabelValues(model.Name, result)
		}
		m.tokenIDs.WithLabelValues(model.Name, report.TokensForwarded.String())
		m.firstTokens.WithLabelValues(model.Name, firsttoken.Prefill.String())
		for _, why := range []policies.Reason{policies.Split, policies.ShortPrompt, policies.NoPrefill, policies.NoPair, policies.Aggregated} {
			m.decisions.WithLabelValues(model.Name, string(why))
		}
		for why := reason.NoEngine; why < reason.Branch; why++ {
			m.decisions.WithLabelValues(model.Name, why.String())
		}
		for _, route := range edge.GenerateRoutes() {
			for _, how := range usualEnds {
				m.requests.WithLabelValues(model.Name, route, how.outcome.String(), strconv.Itoa(how.status))
			}
		}
	}
}

// expectMigrations makes the series of moves exist at 0.
func (m *metrics) expectMigrations() {
	for r := range migration.Reasons {
		for result := range migration.Results {
			m.migrations.WithLabelValues(r.String(), result.String())
		}
		m.migratedTokens.WithLabelValues(r.String())
		m.migratedBytes.WithLabelValues(r.String())
		m.migrationTimes.WithLabelValues(r.String())
	}
	for _, kind := range []string{"predicted", "measured", "lost"} {
		m.migrationGains.WithLabelValues(kind)
	}
}

// usualEnds are the outcomes and statuses that most requests end with.
var usualEnds = [...]struct {
	outcome dispatch.Outcome
	status  int
}{
	{dispatch.Completed, http.StatusOK},
	{dispatch.ClientLeft, http.StatusOK}, {dispatch.ClientLeft, 499},
	{dispatch.FailedBefore, http.StatusInternalServerError}, {dispatch.FailedBefore, http.StatusBadGateway},
	{dispatch.FailedBefore, http.StatusServiceUnavailable}, {dispatch.FailedBefore, http.StatusGatewayTimeout},
	{dispatch.FailedAfter, http.StatusOK},
}

// expectRefusals makes the refusals of clients and agents exist at 0.
func (m *metrics) expectRefusals() {
	for why := reason.BadFraming; why < reason.NoEngine; why++ {
		m.refusals.WithLabelValues(strconv.Itoa(why.Status()), why.String())
	}
	for why, status := range map[string]string{string(auth.NoCredentials): "401", string(auth.InvalidToken): "401",
		string(auth.InsufficientScope): "403", "bad_signature": "403", "stale": "409", "store_unavailable": "503"} {
		m.agentRefusals.WithLabelValues(status, why)
	}
}
