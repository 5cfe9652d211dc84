package telemetry_test

import (
	"testing"

	"pdrouter/internal/dashboards"
	"pdrouter/internal/golden"
)

// TestDeployedFiles: the dashboard, the alerts and the runbook are those of the tables. They stand here so that one -update writes all that
// follows from the table of metrics.
func TestDeployedFiles(t *testing.T) {
	rules, err := dashboards.Rules()
	if err != nil {
		t.Fatal(err)
	}
	golden.Equal(t, "../../deploy/prometheus/alerts.yaml", rules)
	golden.Equal(t, "../../deploy/helm/pdrouter/files/alerts.yaml", rules) // a chart can have no file from outside its folder
	dashboard, err := dashboards.Dashboard()
	if err != nil {
		t.Fatal(err)
	}
	golden.Equal(t, "../../deploy/grafana/pdrouter.json", dashboard)
	golden.Equal(t, "../../deploy/helm/pdrouter/files/dashboard.json", dashboard)
	golden.Equal(t, "../../docs/runbook.md", dashboards.Runbook())
	golden.Equal(t, "../ui/static/runbook.html", dashboards.RunbookPage())
}
