package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/connector"
)

// TestSourceMakesEngines has every key of a source that is each engine's be in the entry of what DNS has.
func TestSourceMakesEngines(t *testing.T) {
	for _, row := range []struct {
		name, at, key string
		source        Source
		connector     string
		want          Engine
	}{
		{"pull", "10.0.0.7:8000", "decode_from", Source{DNS: "http://d.svc:8000", SideChannel: "{host}:5600", DataParallel: 2, TensorParallel: 4, RequestIDRandomizationDisabled: true, BearerTokenFile: "/k"},
			connector.NamePull, Engine{Name: "role-10-0-0-7-8000", URL: "http://10.0.0.7:8000", SideChannel: "10.0.0.7:5600", DataParallel: 2, TensorParallel: 4, RequestIDRandomizationDisabled: true, BearerTokenFile: "/k"}},
		{"sglang", "[fd00::7]:30000", "prefill_from", Source{DNS: "http://p.svc:30000", Names: "p", BootstrapPort: 8998},
			connector.NameSGLang, Engine{Name: "p-fd00--7-30000", URL: "http://[fd00::7]:30000", BootstrapPort: 8998}},
		{"kvplane", "10.0.0.7:80", "prefill_from", Source{DNS: "http://p.svc", Control: "http://{host}:9000"},
			connector.NameKVPlane, Engine{Name: "role-10-0-0-7-80", URL: "http://10.0.0.7:80", Control: "http://10.0.0.7:9000"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var v faults
			if row.source.validate(row.key, row.connector, &v); len(v) > 0 {
				t.Fatal(v)
			}
			if diff := cmp.Diff(row.source.Engine("role", netip.MustParseAddrPort(row.at)), row.want); diff != "" {
				t.Error("(-got +want):\n" + diff)
			}
		})
	}
}

// TestSourceKeysAreChecked has keys that no engine of the list could have.
func TestSourceKeysAreChecked(t *testing.T) {
	for _, row := range []struct {
		connector, list string
		source          Source
		want            string
	}{
		{connector.NameKVPlane, "prefill_from", Source{DNS: "http://p:1", DataParallel: 2}, "prefill_from.data_parallel"},
		{connector.NamePush, "prefill_from", Source{DNS: "http://p:1", DataParallel: -1}, "prefill_from.data_parallel"},
		{connector.NamePush, "prefill_from", Source{DNS: "http://p:1", BootstrapPort: 1}, "prefill_from.bootstrap_port"},
		{connector.NameSGLang, "decode_from", Source{DNS: "http://p:1", BootstrapPort: 1}, "decode_from.bootstrap_port"},
		{connector.NameSGLang, "prefill_from", Source{DNS: "http://p:1", BootstrapPort: 70000}, "prefill_from.bootstrap_port"},
		{connector.NameKVPlane, "decode_from", Source{DNS: "http://p:1", TensorParallel: 2}, "decode_from.request_id_randomization_disabled"},
		{connector.NameNone, "engines_from", Source{DNS: "http://p:1", RequestIDRandomizationDisabled: true}, "engines_from.request_id_randomization_disabled"},
		{connector.NamePull, "decode_from", Source{DNS: "http://p:1", TensorParallel: -2}, "decode_from.tensor_parallel"},
		{connector.NamePull, "decode_from", Source{File: "/f", TensorParallel: 2}, "decode_from.tensor_parallel"},
		{connector.NamePull, "decode_from", Source{File: "/f", RequestIDRandomizationDisabled: true}, "decode_from.request_id_randomization_disabled"},
		{connector.NamePull, "decode_from", Source{File: "/f", DataParallel: 2}, "decode_from.data_parallel"},
		{connector.NameSGLang, "prefill_from", Source{File: "/f", BootstrapPort: 2}, "prefill_from.bootstrap_port"},
	} {
		var v faults
		if row.source.validate(row.list, row.connector, &v); len(v) != 1 || !strings.HasPrefix(v[0].Error(), row.want+" ") {
			t.Errorf("%s %s: %v; want a mistake of %s", row.connector, row.list, v, row.want)
		}
	}
}
