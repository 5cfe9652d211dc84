package connector

import "testing"

// TestFirstBlocks: the first blocks of what decode pins are read as what prefill keeps is; all else stays as the engine wrote it.
func TestFirstBlocks(t *testing.T) {
	const said = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_block_ids":[[7,8,9]],"remote_engine_id":"d","remote_request_id":"r","remote_host":"h",` +
		`"remote_port":5600,"remote_num_tokens":40,"tp_size":2,"remote_blocks_expiry_time":17.25,"unknown":{"a":[1]}}`
	got, ok := FirstBlocks([]byte(said), 2, 32)
	const want = `{"do_remote_decode":false,"do_remote_prefill":true,"remote_block_ids":[[7,8]],"remote_blocks_expiry_time":17.25,"remote_engine_id":"d",` +
		`"remote_host":"h","remote_num_tokens":32,"remote_port":5600,"remote_request_id":"r","tp_size":2,"unknown":{"a":[1]}}`
	if !ok || string(got) != want {
		t.Errorf("%v: %s\nwant %s", ok, got, want)
	}
	h := Handoff{}
	if kind := (pull{}).Accept(&h, got); kind != (pull{}).Accept(&h, []byte(want)) || kind.String() != "prefill_usable" {
		t.Errorf("they are %v", kind)
	}
	for name, kv := range map[string]string{
		"too few blocks": `{"remote_block_ids":[[7]],"remote_num_tokens":40}`, "too few tokens": `{"remote_block_ids":[[7,8,9]],"remote_num_tokens":31}`,
		"two groups": `{"remote_block_ids":[[7,8,9],[1]],"remote_num_tokens":40}`, "no lists": `{"remote_block_ids":[7,8,9],"remote_num_tokens":40}`,
		"no blocks": `{"remote_block_ids":null,"remote_num_tokens":40}`, "no tokens": `{"remote_block_ids":[[7,8,9]]}`, "no object": `[1]`,
	} {
		if got, ok := FirstBlocks([]byte(kv), 2, 32); ok {
			t.Errorf("%s: %s", name, got)
		}
	}
}
