package router

import (
	"testing"

	"pdrouter/policies"

	"github.com/google/go-cmp/cmp"
)

// TestRehearsalWritesBothLegs holds the legs against what bodies write, and refuses what has none.
func TestRehearsalWritesBothLegs(t *testing.T) {
	one := policies.Fleet{Prefill: []policies.Engine{{Name: "p", Usable: true}}, Decode: []policies.Engine{{Name: "d", Usable: true}}}
	for path, in := range map[string]string{
		pathChat:        `{"model":"m","stream":true,"max_tokens":9,"messages":[{"role":"user","content":"a \u00e9\n"}]}`,
		pathCompletions: `{"model":"m","prompt":"a b","kv_transfer_params":{}}`,
	} {
		r, err := NewRehearsal(path, one)
		if err != nil {
			t.Fatal(err)
		}
		b, herr := parseBody(r.shape, []byte(in), r.limits)
		if herr != nil {
			t.Fatal(herr)
		}
		for range 2 { // its room is used again
			prefill, decode, err := r.Legs([]byte(in))
			if err != nil {
				t.Fatal(err)
			}
			for name, legs := range map[string][2]string{
				"prefill": {string(prefill), string(b.prefill(nil, r.h.request, push{}.prefillParams(nil, &r.h)))},
				"decode":  {string(decode), string(b.decode(nil, r.h.request, push{}.decodeParams(nil, &r.h)))},
			} {
				if d := cmp.Diff(legs[1], legs[0]); d != "" {
					t.Errorf("%s of %s: %s", name, path, d)
				}
			}
		}
	}
	if _, err := NewRehearsal(pathModels, one); err == nil {
		t.Error("a path without legs is taken")
	}
	r, _ := NewRehearsal(pathChat, one)
	for _, in := range []string{`{`, `{"model":"m","messages":[],"max_tokens":1}`} {
		if _, _, err := r.Legs([]byte(in)); err == nil {
			t.Errorf("%s has legs", in)
		}
	}
}
