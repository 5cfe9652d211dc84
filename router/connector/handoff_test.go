package connector

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/dispatch"
)

// TestRefusalNames looks for each of the names by which engines meet.
func TestRefusalNames(t *testing.T) {
	h := &Handoff{Transfer: "0123456789abcdef0123456789abcdef", Endpoint: &PrefillEndpoint{EngineID: "7d6c-engine", Host: "10.1.2.3", Port: 5600}, Ticket: []byte("ticket-1")}
	other := &Handoff{Transfer: "fedcba9876543210fedcba9876543210", Bootstrap: Bootstrap{host: "10.1.2.4", port: 8998, room: 1234567890123}}
	pulled := &Handoff{Transfer: "fedcba9876543210fedcba9876543210",
		KVParams: []byte(`{"do_remote_prefill":true,"remote_engine_id":"9a9a-engine","remote_host":"10.1.2.5","remote_port":5700,"remote_block_ids":[[1]],"remote_request_id":"r"}`)}
	for _, row := range []struct {
		h    *Handoff
		says string
		ok   bool
	}{
		{h, `{"error":{"message":"transfer 0123456789abcdef0123456789abcdef"}}`, false},
		{h, `{"error":{"message":"of 7d6c-engine"}}`, false},
		{h, `{"error":{"message":"tcp://10.1.2.3:5600"}}`, false},
		{h, `{"error":{"message":"ticket-1"}}`, false},
		{h, `{"error":{"message":"max_tokens is too large: 5600"}}`, true},
		{other, `{"message":"room 1234567890123"}`, false},
		{other, `{"message":"10.1.2.4:8998"}`, false},
		{other, `{"message":"tcp://10.1.2.3:5600"}`, true},
		{pulled, `{"message":"9a9a-engine"}`, false},
		{pulled, `{"message":"10.1.2.5:5700"}`, false},
		{&Handoff{}, `{"message":"any"}`, true},
	} {
		if out, ok := row.h.WithoutHandoff([]byte(row.says)); ok != row.ok || ok && string(out) != row.says {
			t.Errorf("%s: %v %s", row.says, ok, out)
		}
	}
}

// TestSGLangRooms draws rooms for every data-parallel rank.
func TestSGLangRooms(t *testing.T) {
	const ranks = 8
	served := map[uint64]bool{}
	for range 64 * ranks {
		room := Bootstrap{}.Draw().room
		if room >= 1<<63 {
			t.Fatalf("room %d", room)
		}
		served[room%ranks] = true
	}
	if len(served) != ranks {
		t.Errorf("ranks %v", served)
	}
}

// TestAppendTokenIDs adds the prompt's token ids to the members of a decode leg, of every connector that takes them: prefill must have answered
// before decode is asked.
func TestAppendTokenIDs(t *testing.T) {
	taking := 0
	for _, c := range All() {
		if !c.Traits().TakesTokenIDs {
			continue
		}
		if taking++; c.Traits().Mode != dispatch.InTurn {
			t.Errorf("%s takes token ids, and its legs are %s", c.Traits().Name, c.Traits().Mode)
		}
		for _, params := range []string{`{"remote_host":"h"}`, "{ \"remote_block_ids\" : [[1,2]] ,\n\"a\":{} }"} {
			members := c.DecodeMembers([]byte(`"x":1,`), &Handoff{KVParams: []byte(params)})
			var got struct {
				X  int
				KV map[string]json.RawMessage `json:"kv_transfer_params"`
			}
			if err := json.Unmarshal([]byte("{"+string(AppendTokenIDs(members, []byte("[1, 2]")))+"}"), &got); err != nil {
				t.Fatalf("%s: %v", params, err)
			}
			var want map[string]json.RawMessage
			if err := json.Unmarshal([]byte(params), &want); err != nil {
				t.Fatal(err)
			}
			want["prompt_token_ids"] = json.RawMessage("[1, 2]")
			if d := cmp.Diff(want, got.KV); d != "" || got.X != 1 {
				t.Errorf("%s: %s", params, d)
			}
		}
	}
	if taking == 0 {
		t.Error("no connector takes token ids")
	}
}
