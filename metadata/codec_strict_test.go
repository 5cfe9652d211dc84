package metadata_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
)

// TestFault46NestedFieldsAreReadOneWay: what two readers could read in two ways is refused, however deep it lies: a name that
// occurs twice, and a list in place of a map.
func TestFault46NestedFieldsAreReadOneWay(t *testing.T) {
	rec := metadatatest.Record("prefill-0", 7, 2, 0)
	raw := func(s string) msgpack.RawMessage { return msgpack.RawMessage(s) }
	layout := func(change func(map[string]any)) func(map[string]any) {
		return func(m map[string]any) { change(m["layout"].(map[string]any)) }
	}
	for name, c := range map[string]struct {
		change func(map[string]any)
		want   string
	}{
		"tp twice":            {func(m map[string]any) { m["rank"] = raw("\x84\xa2dp\x00\xa2pp\x00\xa2tp\x01\xa2tp\x00") }, "twice"},
		"tp twice, long name": {func(m map[string]any) { m["rank"] = raw("\x84\xa2dp\x00\xa2pp\x00\xd9\x02tp\x01\xa2tp\x00") }, "twice"},
		"twice in a region": {layout(func(m map[string]any) {
			m["regions"] = raw("\x91\x82\xa5layer\x00\xa5layer\x01")
		}), "twice"},
		"twice in what is unknown": {func(m map[string]any) { m["future"] = raw("\x91\x82\x01\x00\x01\x00") }, "twice"},
		"rank is a list":           {func(m map[string]any) { m["rank"] = []any{0, 0, 0} }, "rank"},
		"size is a list":           {func(m map[string]any) { m["size"] = []any{1, 1, 2} }, "size"},
		"process is a list":        {func(m map[string]any) { m["process"] = []any{"", "", 1, 2} }, "process"},
		"layout is a list":         {func(m map[string]any) { m["layout"] = []any{4} }, "layout"},
		"a region is a list":       {layout(func(m map[string]any) { m["regions"] = []any{[]any{0, 2, 0, 8, 1}} }), "regions"},
		"a group is a list":        {layout(func(m map[string]any) { m["groups"] = []any{[]any{0}} }), "groups"},
	} {
		b := fields(t, metadatatest.Marshal(t, rec), c.change)
		if _, err := metadata.Unmarshal(b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v; want it refused for %q", name, err, c.want)
		}
	}
	many := map[int]int{}
	for i := range metadata.FewKeys + 8 {
		many[i] = i
	}
	b := fields(t, metadatatest.Marshal(t, rec), func(m map[string]any) { m["future"] = many })
	if _, err := metadata.Unmarshal(b); err != nil {
		t.Errorf("a large map of an unknown field: %v", err)
	}
	last := bytes.LastIndex(b, []byte{0xde, 0, metadata.FewKeys + 8})
	if last < 0 {
		t.Fatal("the map is not there")
	}
	one, _ := msgpack.Marshal(map[int]int{1: 1})
	doubled := append([]byte{0xde, 0, metadata.FewKeys + 8}, bytes.Repeat(one[1:], metadata.FewKeys+8)...)
	if err := metadata.CheckMsgpack(doubled); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a large map of one key: %v", err)
	}
	if _, _, err := metadata.ParseBinding(fields(t, bindingOf(t, rec), func(m map[string]any) { m["rank"] = []any{0, 0, 0} })); err == nil {
		t.Error("a binding whose rank is a list is taken")
	}
}

func bindingOf(t *testing.T, rec metadata.Record) []byte {
	t.Helper()
	b, err := metadata.NewBinding(metadatatest.NewVoucher("gateway"), rec, metadatatest.Public(metadatatest.AgentKey("prefill-0")), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestMarshalTellsOfForgottenBytes: a record that a newer version wrote cannot be changed and sent out as it was.
func TestMarshalTellsOfForgottenBytes(t *testing.T) {
	v := metadatatest.NewVoucher("gateway")
	rec, err := metadatatest.Record("prefill-0", 7, 1, 0).Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	newer, err := metadata.Unmarshal(fields(t, metadatatest.Marshal(t, rec), func(m map[string]any) { m["future"] = 1 }))
	if err != nil || !bytes.Contains(newer.Payload, []byte("future")) {
		t.Fatalf("got %v and the payload %q", err, newer.Payload)
	}
	if b, err := metadata.Marshal(newer); err != nil || !bytes.Contains(b, newer.Payload) {
		t.Errorf("unchanged: %v", err)
	}
	newer.HTTP = "http://elsewhere:1"
	if _, err := metadata.Marshal(newer); err == nil {
		t.Error("the old bytes are sent for a record that was changed")
	}
	if newer.Payload = nil; errors.Is(newer.Verify(v), nil) {
		t.Error("the changed record verifies")
	}
}

// TestFault43NobodyIsBelievedForLong: an agent's key whose binding ends in a moment cannot have a record believed for longer,
// nor one of another role.
func TestFault43NobodyIsBelievedForLong(t *testing.T) {
	v := metadatatest.NewVoucher("gateway")
	own := metadatatest.AgentKey("prefill-0")
	now := time.Now()
	until := now.Add(10 * time.Second).Truncate(time.Millisecond)
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	short, err := metadatatest.SignAs(t, rec, own).Bind(v, metadatatest.Public(own), until)
	if err != nil {
		t.Fatal(err)
	}
	if got := short.Believed(now); !got.Equal(until) {
		t.Errorf("believed for %v; want 10 s, as it is bound", got.Sub(now))
	}
	if got := rec.Believed(now); got.Sub(now) != rec.Lifetime() {
		t.Errorf("unbound: believed for %v; want its lease", got.Sub(now))
	}
	if long := metadatatest.Bound(t, v, rec, own); long.Believed(now).Sub(now) != rec.Lifetime() {
		t.Errorf("bound for an hour: believed for %v; want its lease", long.Believed(now).Sub(now))
	}
	forever := rec
	forever.Expires = forever.Published.Add(200 * 365 * 24 * time.Hour)
	for name, signed := range map[string]metadata.Record{"bound": metadatatest.Bound(t, v, forever, own), "a gateway's": must(forever.Sign(v))} {
		if _, err := metadata.UnmarshalSigned(metadatatest.Marshal(t, signed), v); err == nil || !strings.Contains(err.Error(), "lives") {
			t.Errorf("%s, for 200 years: got %v; want it refused", name, err)
		}
	}
	turned := rec
	turned.Role = metadata.Both
	turned = metadatatest.SignAs(t, turned, own)
	turned.Binding = short.Binding
	if _, err := metadata.UnmarshalSigned(metadatatest.Marshal(t, turned), v); err == nil || !strings.Contains(err.Error(), "role") {
		t.Errorf("under the binding of another role: got %v; want it refused", err)
	}
}

func must(r metadata.Record, err error) metadata.Record {
	if err != nil {
		panic(err)
	}
	return r
}
