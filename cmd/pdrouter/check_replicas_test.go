package main

import (
	"strings"
	"testing"
)

// TestCheckReplicas: several gateways are warned of what they cannot know of each other without Redis.
func TestCheckReplicas(t *testing.T) {
	const models = "models: [{name: m, engines: [{name: e, url: \"http://e:1\"}]}]\n"
	const warning = "gateways without Redis know nothing of each other"
	for _, row := range []struct {
		name, text string
		warned     bool
		err        string
	}{
		{"one", models, false, ""},
		{"two alone", models + "replicas: 2\n", true, ""},
		{"two with Redis", models + "replicas: 2\nmetadata: {store: redis, redis: {address: \"r:6379\"}}\n", false, ""},
		{"none", models + "replicas: -1\n", false, "replicas is -1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := checkText(t, t.TempDir(), row.text)
			if row.err != "" {
				if err == nil || !strings.Contains(err.Error(), row.err) {
					t.Fatalf("got %v; want %q", err, row.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(got, warning) != row.warned {
				t.Errorf("warned %v; want %v:\n%s", !row.warned, row.warned, got)
			}
		})
	}
}
