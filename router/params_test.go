package router

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseHanded(t *testing.T) {
	const at = `"remote_engine_id":"e","remote_host":"h","remote_port":5600`
	for _, c := range []struct {
		name, kv string
		located  bool
		pull     kind
	}{
		{"all", `{"do_remote_prefill":true,"remote_block_ids":[[1,2]],"remote_request_id":"r",` + at + `,"tp_size":2}`, true, evPrefillUsable},
		{"no blocks", `{"do_remote_prefill":true,"remote_block_ids":[],"remote_request_id":"r",` + at + `}`, true, evPrefillUsable},
		{"blocks are null", `{"do_remote_prefill":true,"remote_block_ids":null,"remote_request_id":"r",` + at + `}`, true, evPrefillUnusable},
		{"blocks are an object", `{"do_remote_prefill":true,"remote_block_ids":{},"remote_request_id":"r",` + at + `}`, true, evPrefillUnusable},
		{"not remote", `{"do_remote_prefill":false,"remote_block_ids":[1],"remote_request_id":"r",` + at + `}`, true, evPrefillUnusable},
		{"no request", `{"do_remote_prefill":true,"remote_block_ids":[1],` + at + `}`, true, evPrefillUnusable},
		{"empty request", `{"do_remote_prefill":true,"remote_block_ids":[1],"remote_request_id":"",` + at + `}`, true, evPrefillUnusable},
		{"sizes are null", `{` + at + `,"tp_size":null,"pp_size":null}`, true, evPrefillUnusable},
		{"white space", " {\n" + at + " }\n", true, evPrefillUnusable},
		{"no engine", `{"remote_host":"h","remote_port":1}`, false, evPrefillUnusable},
		{"no host", `{"remote_engine_id":"e","remote_port":1}`, false, evPrefillUnusable},
		{"port 0", `{"remote_engine_id":"e","remote_host":"h","remote_port":0}`, false, evPrefillUnusable},
		{"tp 0", `{` + at + `,"tp_size":0}`, false, evPrefillUnusable},
		{"a port in words", `{"remote_engine_id":"e","remote_host":"h","remote_port":"1"}`, false, evPrefillUnusable},
		{"half a port", `{"remote_engine_id":"e","remote_host":"h","remote_port":1.5}`, false, evPrefillUnusable},
		{"an engine without quotes", `{"remote_engine_id":7,"remote_host":"h","remote_port":1}`, false, evPrefillUnusable},
		{"remote in words", `{"do_remote_prefill":"true",` + at + `}`, false, evPrefillUnusable},
		{"cut", `{` + at, false, evPrefillUnusable},
		{"more behind it", `{` + at + `}{`, false, evPrefillUnusable},
		{"a list", `[]`, false, evPrefillUnusable},
		{"null", `null`, false, evPrefillUnusable},
		{"nothing", ``, false, evPrefillUnusable},
	} {
		if _, ok := parseCoordinates([]byte(c.kv)); ok != c.located {
			t.Errorf("%s: coordinates: got %v, want %v", c.name, ok, c.located)
		}
		if got := (pull{}).accept(&handoff{}, []byte(c.kv)); got != c.pull {
			t.Errorf("%s: pull: got %v, want %v", c.name, got, c.pull)
		}
	}
	got, ok := parseCoordinates([]byte(`{"remote_engine_id":"e\u0041\"","remote_host":"h\/","remote_port":5600,"tp_size":2,"pp_size":3,"dcp_size":4}`))
	want := coordinates{EngineID: `eA"`, Host: "h/", Port: 5600, TP: 2, PP: 3, DCP: 4}.written()
	if diff := cmp.Diff(got, want, cmp.AllowUnexported(coordinates{})); !ok || diff != "" {
		t.Errorf("got %v, %s", ok, diff)
	}
}
