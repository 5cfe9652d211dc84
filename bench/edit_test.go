package bench

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEditorsMakeTheSameBody has the router's code and encoding/json read one body: both legs keep its prompt, and prefill's is what
// the round trip makes, but for ids and what is not asked of prefill.
func TestEditorsMakeTheSameBody(t *testing.T) {
	for _, route := range []string{"chat", "completions"} {
		for _, size := range append(editSizes[:], 800, 801, 802, 803, 999, 1003) {
			body, err := editBody(route, size)
			if err != nil {
				t.Fatal(err)
			}
			if len(body) != size || !json.Valid(body) {
				t.Fatalf("%s of %d has %d bytes: %q", route, size, len(body), body[max(0, len(body)-120):])
			}
			r, err := rehearsal(route)
			if err != nil {
				t.Fatal(err)
			}
			prefill, decode, err := r.Legs(body)
			if err != nil {
				t.Fatal(err)
			}
			round, err := jsonRoundTrip(body)
			if err != nil {
				t.Fatal(err)
			}
			got, want := decoded(t, prefill), decoded(t, round)
			delete(want, "stream_options")
			for _, m := range []map[string]any{got, want} {
				m["kv_transfer_params"].(map[string]any)["transfer_id"] = ""
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("prefill of %s, %d bytes: %.500s", route, size, d)
			}
			got, want = decoded(t, decode), decoded(t, body)
			delete(got, "kv_transfer_params")
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("decode of %s, %d bytes: %.500s", route, size, d)
			}
		}
	}
	if _, err := editBody("chat", 10); err == nil {
		t.Error("a body of 10 bytes is made")
	}
}

func decoded(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatalf("%v: %.300s", err, body)
	}
	return m
}

func TestEditDriver(t *testing.T) {
	for _, kind := range []string{editRouter, editJSON, editScan} {
		if err := EditDriver([]string{kind, "chat", "1024", "3"}); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	for _, args := range [][]string{nil, {"router", "chat", "1024"}, {"nobody", "chat", "1024", "1"}, {"router", "images", "1024", "1"}, {"router", "chat", "1024", "x"}} {
		if err := EditDriver(args); err == nil {
			t.Errorf("%q: want an error", args)
		}
	}
}

func TestCollected(t *testing.T) {
	if n, err := collected("==1== Events    : Ir\n==1== Collected : 64323506\n"); n != 64323506 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	if _, err := collected("==1== nothing\n"); err == nil {
		t.Error("no count is taken for one")
	}
}
