package connector

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/dispatch"
)

func TestParseHanded(t *testing.T) {
	const at = `"remote_engine_id":"e","remote_host":"h","remote_port":5600`
	for _, c := range []struct {
		name, kv string
		located  bool
		pull     dispatch.EventKind
	}{
		{"all", `{"do_remote_prefill":true,"remote_block_ids":[[1,2]],"remote_request_id":"r",` + at + `,"tp_size":2}`, true, dispatch.EvPrefillUsable},
		{"no blocks", `{"do_remote_prefill":true,"remote_block_ids":[],"remote_request_id":"r",` + at + `}`, true, dispatch.EvPrefillUsable},
		{"blocks are null", `{"do_remote_prefill":true,"remote_block_ids":null,"remote_request_id":"r",` + at + `}`, true, dispatch.EvPrefillUnusable},
		{"blocks are an object", `{"do_remote_prefill":true,"remote_block_ids":{},"remote_request_id":"r",` + at + `}`, true, dispatch.EvPrefillUnusable},
		{"not remote", `{"do_remote_prefill":false,"remote_block_ids":[1],"remote_request_id":"r",` + at + `}`, true, dispatch.EvPrefillUnusable},
		{"no request", `{"do_remote_prefill":true,"remote_block_ids":[1],` + at + `}`, true, dispatch.EvPrefillUnusable},
		{"empty request", `{"do_remote_prefill":true,"remote_block_ids":[1],"remote_request_id":"",` + at + `}`, true, dispatch.EvPrefillUnusable},
		{"sizes are null", `{` + at + `,"tp_size":null,"pp_size":null}`, true, dispatch.EvPrefillUnusable},
		{"white space", " {\n" + at + " }\n", true, dispatch.EvPrefillUnusable},
		{"no engine", `{"remote_host":"h","remote_port":1}`, false, dispatch.EvPrefillUnusable},
		{"no host", `{"remote_engine_id":"e","remote_port":1}`, false, dispatch.EvPrefillUnusable},
		{"port 0", `{"remote_engine_id":"e","remote_host":"h","remote_port":0}`, false, dispatch.EvPrefillUnusable},
		{"tp 0", `{` + at + `,"tp_size":0}`, false, dispatch.EvPrefillUnusable},
		{"a port in words", `{"remote_engine_id":"e","remote_host":"h","remote_port":"1"}`, false, dispatch.EvPrefillUnusable},
		{"half a port", `{"remote_engine_id":"e","remote_host":"h","remote_port":1.5}`, false, dispatch.EvPrefillUnusable},
		{"an engine without quotes", `{"remote_engine_id":7,"remote_host":"h","remote_port":1}`, false, dispatch.EvPrefillUnusable},
		{"remote in words", `{"do_remote_prefill":"true",` + at + `}`, false, dispatch.EvPrefillUnusable},
		{"cut", `{` + at, false, dispatch.EvPrefillUnusable},
		{"more behind it", `{` + at + `}{`, false, dispatch.EvPrefillUnusable},
		{"a list", `[]`, false, dispatch.EvPrefillUnusable},
		{"null", `null`, false, dispatch.EvPrefillUnusable},
		{"nothing", ``, false, dispatch.EvPrefillUnusable},
	} {
		if _, ok := ParseEndpoint([]byte(c.kv)); ok != c.located {
			t.Errorf("%s: endpoint: got %v, want %v", c.name, ok, c.located)
		}
		if got := (pull{}).Accept(&Handoff{}, []byte(c.kv)); got != c.pull {
			t.Errorf("%s: pull: got %v, want %v", c.name, got, c.pull)
		}
	}
	got, ok := ParseEndpoint([]byte(`{"remote_engine_id":"e\u0041\"","remote_host":"h\/","remote_port":5600,"tp_size":2,"pp_size":3,"dcp_size":4}`))
	want := PrefillEndpoint{EngineID: `eA"`, Host: "h/", Port: 5600, TP: 2, PP: 3, DCP: 4}.written()
	if diff := cmp.Diff(got, want, cmp.AllowUnexported(PrefillEndpoint{})); !ok || diff != "" {
		t.Errorf("got %v, %s", ok, diff)
	}
}

func TestBlockLists(t *testing.T) {
	for blocks, want := range map[string]Handed{
		`null`:            {},
		`[]`:              {},
		`[[]]`:            {Groups: 1},
		`[[1,2,3]]`:       {Groups: 1, Blocks: 3},
		`[[1,2],[3]]`:     {Groups: 2, Blocks: 2},
		`[1,2]`:           {Blocks: -1},
		`[[1],2,[3]]`:     {Groups: 2, Blocks: -1},
		`{"0":[1],"1":7}`: {},
	} {
		if got := ParseHanded([]byte(`{"remote_block_ids":` + blocks + `}`)); got != want {
			t.Errorf("%s: got %+v, want %+v", blocks, got, want)
		}
	}
}
