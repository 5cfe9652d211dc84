package refengine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/refengine"
	"pdrouter/internal/refengine/refenginetest"
)

// pullAnswer is what these tests read of a completion.
type pullAnswer struct {
	Params  map[string]any `json:"kv_transfer_params"`
	Choices []struct {
		Text   string  `json:"text"`
		Prompt []int32 `json:"prompt_token_ids"`
		Tokens []int32 `json:"token_ids"`
	} `json:"choices"`
	Usage struct {
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

func (a *pullAnswer) all() []int32 { return append(a.Choices[0].Prompt, a.Choices[0].Tokens...) }

// complete asks an engine for a completion.
func complete(t *testing.T, e *refenginetest.Served, prompt any, tokens int, params any) (a pullAnswer, status int) {
	t.Helper()
	body, _ := json.Marshal(map[string]any{
		"prompt": prompt, "max_tokens": tokens, "ignore_eos": true, "return_token_ids": true, "kv_transfer_params": params,
	})
	resp, err := http.Post("http://"+e.Addr+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(raw, &a); err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
	}
	return a, resp.StatusCode
}

var exporting = map[string]any{"do_remote_decode": true, "do_remote_prefill": false, "remote_block_ids": nil, "remote_engine_id": nil}

// TestPull moves a conversation from one engine to another, as stock vLLM does it: nothing is computed there, the next turn finds all of it, and
// blocks of another prompt make another answer.
func TestPull(t *testing.T) {
	pull := new(refengine.Pull)
	engine := func(name string) *refenginetest.Served {
		return refenginetest.Run(t, refengine.Config{Name: name, Pull: pull, PrefixCache: true})
	}
	x, y, alone := engine("x"), engine("y"), engine("alone")
	one, _ := complete(t, x, strings.Repeat("a conversation ", 20), 40, nil)
	ids := one.all()
	ids = ids[:(len(ids)-1)/16*16] // the KV of an answer's last token was not computed

	exported, _ := complete(t, x, ids, 1, exporting)
	if exported.Params == nil || exported.Usage.Details.Cached != len(ids)-16 || x.Books().Held != len(ids)/16 {
		t.Fatalf("the export has %v, %d of %d tokens cached, %+v", exported.Params, exported.Usage.Details.Cached, len(ids), x.Books())
	}
	before := y.Books()
	imported, status := complete(t, y, ids, 1, exported.Params)
	if after := y.Books(); status != 200 || after.Computed != before.Computed || after.External != before.External+uint64(len(ids)) {
		t.Fatalf("the import has status %d, %+v, before %+v", status, after, before)
	}
	if x.Books().Held != 0 || imported.Choices[0].Text != exported.Choices[0].Text {
		t.Fatalf("%+v, the answers are %q and %q", x.Books(), exported.Choices[0].Text, imported.Choices[0].Text)
	}
	if _, status := complete(t, y, ids, 1, exported.Params); status != 200 {
		t.Errorf("a second import has status %d; all of it is cached", status)
	}

	next := append(one.all(), []int32("and more")...)
	two, _ := complete(t, y, next, 20, nil)
	want, _ := complete(t, alone, next, 20, nil)
	if two.Usage.Details.Cached != len(ids) || two.Choices[0].Text != want.Choices[0].Text {
		t.Errorf("the next turn has %d of %d tokens cached, and %q; want %q", two.Usage.Details.Cached, len(ids), two.Choices[0].Text, want.Choices[0].Text)
	}

	others := append([]int32(nil), ids...)
	others[3]++
	exported, _ = complete(t, x, others, 1, exporting)
	z := engine("z")
	if _, status := complete(t, z, ids, 1, exported.Params); status != 200 {
		t.Fatalf("status %d", status)
	}
	if wrong, _ := complete(t, z, next, 20, nil); wrong.Choices[0].Text == want.Choices[0].Text {
		t.Error("blocks of another prompt make the same answer")
	}
}

// TestPullKeeps: what nobody reads is kept until the lease ends or a notification comes, and an import of what is not kept fails.
func TestPullKeeps(t *testing.T) {
	pull := new(refengine.Pull)
	x := refenginetest.Run(t, refengine.Config{Name: "x", Pull: pull, Lease: 200 * time.Millisecond})
	y := refenginetest.Run(t, refengine.Config{Name: "y", Pull: pull})
	exported, _ := complete(t, x, "told", 1, exporting)
	if err := pull.Notify(context.Background(), exported.Params["remote_engine_id"].(string), fmt.Sprint(exported.Params["remote_request_id"], ":1")); err != nil || x.Books().Held != 0 {
		t.Fatalf("%v, %+v", err, x.Books())
	}
	exported, _ = complete(t, x, "left", 1, exporting)
	for x.Books().Held != 0 {
		time.Sleep(time.Millisecond)
	}
	if _, status := complete(t, y, "left", 1, exported.Params); status != 503 || x.Books().Expired != 1 || y.Books().Free != y.Books().Blocks {
		t.Errorf("status %d, %+v, %+v", status, x.Books(), y.Books())
	}
	exported, _ = complete(t, x, "killed", 1, exporting)
	if err := x.Kill(); err != nil {
		t.Error(err)
	}
	if _, status := complete(t, y, "killed", 1, exported.Params); status != 503 || y.Books().Free != y.Books().Blocks {
		t.Errorf("status %d, %+v", status, y.Books())
	}
}

// TestPullBidirectional has decode keep an answer for the next turn, as vLLM does with bidirectional_kv_xfer: prefill reads it and computes only
// what is new, whoever's tokens it is of; what nobody reads is kept until a notification, or the time is over.
func TestPullBidirectional(t *testing.T) {
	pull := new(refengine.Pull)
	of := func(name string, pins time.Duration) *refenginetest.Served {
		return refenginetest.Run(t, refengine.Config{Name: name, Pull: pull, PrefixCache: true, Bidirectional: true, PlainNames: true, PinFor: pins})
	}
	p, d, alone := of("p", 0), of("d", 0), of("alone", 0)
	prompt := strings.Repeat("one two three ", 20)
	first, _ := complete(t, p, prompt, 1, exporting)
	answer, _ := complete(t, d, prompt, 20, first.Params)
	if answer.Params["do_remote_decode"] != true || d.Books().Held == 0 {
		t.Fatalf("%v, %+v", answer.Params, d.Books())
	}
	next := append(answer.all(), 97, 98, 99)
	reading := map[string]any{"do_remote_decode": true, "do_remote_prefill": false}
	for k, v := range answer.Params {
		if strings.HasPrefix(k, "remote_") {
			reading[k] = v
		}
	}
	q := of("q", 0) // which has computed nothing
	second, _ := complete(t, q, next, 1, reading)
	if b := q.Books(); b.Computed > 16 || b.External < 280 || d.Books().Held != 0 {
		t.Errorf("%+v, decode has %+v", b, d.Books())
	}
	got, _ := complete(t, d, next, 20, second.Params)
	want, _ := complete(t, alone, next, 20, nil)
	if got.Choices[0].Text != want.Choices[0].Text {
		t.Errorf("%q; want %q", got.Choices[0].Text, want.Choices[0].Text)
	}
	for k, v := range got.Params { // blocks of other tokens
		if strings.HasPrefix(k, "remote_") {
			reading[k] = v
		}
	}
	other := []int32{256}
	for len(other) < len(next) {
		other = append(other, 120)
	}
	third, _ := complete(t, of("r", 0), other, 1, reading)
	got, _ = complete(t, d, other, 20, third.Params)
	if want, _ := complete(t, alone, other, 20, nil); got.Choices[0].Text == want.Choices[0].Text {
		t.Error("blocks of other tokens make the right answer")
	}
	if err := pull.Notify(context.Background(), got.Params["remote_engine_id"].(string), fmt.Sprint(got.Params["remote_request_id"], ":1")); err != nil || d.Books().Held != 0 {
		t.Errorf("after the notification: %v, %+v", err, d.Books())
	}
	first, _ = complete(t, p, "short", 1, exporting)
	brief := of("brief", time.Millisecond)
	complete(t, brief, "short", 20, first.Params)
	for end := time.Now().Add(10 * time.Second); brief.Books().Held != 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	if b := brief.Books(); b.Held != 0 || b.Expired != 1 || b.Early != 0 {
		t.Errorf("%+v", b)
	}
}
