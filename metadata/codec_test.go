package metadata_test

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
)

// fields decodes the payload of an envelope into its fields, lets change edit them, and encodes them again.
func fields(t testing.TB, b []byte, change func(map[string]any)) []byte {
	t.Helper()
	return metadata.ChangePayload(t, b, func(p []byte) []byte {
		var m map[string]any
		if err := msgpack.Unmarshal(p, &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		out, err := msgpack.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return out
	})
}

func TestCodecRoundTrip(t *testing.T) {
	v := metadatatest.NewVoucher("gateway")
	rec := metadatatest.Record("prefill-0", 1<<63+5, 2, 1)
	rec.Published = rec.Published.In(time.FixedZone("x", 3600)) // the zone is not kept, the instant is
	rec.Layout.Groups = []metadata.Group{{Window: 8, Layers: []int{0}}, {Layers: []int{1}}}
	signed, err := rec.Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	b := metadatatest.Marshal(t, signed)
	got, err := metadata.UnmarshalSigned(b, v)
	if err != nil {
		t.Fatal(err)
	}
	signed.Published = signed.Published.UTC()
	if diff := cmp.Diff(signed, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !bytes.Equal(b, metadatatest.Marshal(t, got)) {
		t.Error("the same record gave other bytes")
	}
	if err := got.Verify(v); err != nil {
		t.Error(err)
	}
}

func TestSignatureCoversEveryField(t *testing.T) {
	v := metadatatest.NewVoucher("gateway")
	whole := metadatatest.Record("prefill-0", 7, 2, 1)
	whole.Key = make([]byte, 32)
	signed, err := whole.Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*metadata.Record){
		"engine":            func(r *metadata.Record) { r.Engine = "prefill-1" },
		"generation":        func(r *metadata.Record) { r.Generation++ },
		"rank":              func(r *metadata.Record) { r.Rank.TP = 0 },
		"size":              func(r *metadata.Record) { r.Size.TP = 4 },
		"blob":              func(r *metadata.Record) { r.Blob = []byte{1, 2, 4} },
		"connector version": func(r *metadata.Record) { r.ConnectorVersion = "2" },
		"doorbell":          func(r *metadata.Record) { r.Doorbell = "127.0.0.1:9" },
		"region": func(r *metadata.Record) {
			r.Layout.Regions = []metadata.Region{metadatatest.Region(0), metadatatest.Region(2)}
		},
		"process":   func(r *metadata.Record) { r.Process.PID = 12 },
		"key":       func(r *metadata.Record) { r.Key = append([]byte{^r.Key[0]}, r.Key[1:]...) },
		"no key":    func(r *metadata.Record) { r.Key = nil },
		"expiry":    func(r *metadata.Record) { r.Expires = r.Expires.Add(time.Hour) },
		"key id":    func(r *metadata.Record) { r.KeyID = "other" },
		"signature": func(r *metadata.Record) { r.Signature = append([]byte{^r.Signature[0]}, r.Signature[1:]...) },
	} {
		rec := signed
		change(&rec)
		if err := rec.Verify(v); err == nil {
			t.Errorf("%s: a changed record verifies with its old payload", name)
		}
		rec.Payload = nil
		if err := rec.Verify(v); err == nil {
			t.Errorf("%s: a changed record verifies", name)
		}
		if _, err := metadata.UnmarshalSigned(metadatatest.Marshal(t, rec), v); err == nil {
			t.Errorf("%s: changed bytes verify", name)
		}
	}
}

// A record without a process is encoded as it was before records named one, so that its signature still holds.
func TestRecordWithoutProcess(t *testing.T) {
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	if bytes.Contains(metadatatest.Marshal(t, rec), []byte("process")) {
		t.Error("an unknown process is encoded")
	}
	rec.Process = metadata.Process{Boot: "7cdcf7bb-df11-4205-a15d-2011b9e5aa6b", Namespaces: "pid:[1] time:[2]", PID: 812, Started: 1 << 40}
	got, err := metadata.Unmarshal(metadatatest.Marshal(t, rec))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rec.Process, got.Process); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []metadata.Process{
		{Boot: strings.Repeat("b", metadata.MaxText+1)}, {Namespaces: strings.Repeat("n", metadata.MaxText+1)}, {PID: -1}, {PID: 1 << 40},
	} {
		rec.Process = bad
		if _, err := metadata.Unmarshal(metadatatest.Marshal(t, rec)); err == nil || !strings.Contains(err.Error(), "process.") {
			t.Errorf("%.60v: %v; want it refused", bad, err)
		}
	}
}

// A newer version of this program may add fields: they pass, and the signature covers them.
func TestUnknownFieldsPassAndAreSigned(t *testing.T) {
	v := metadatatest.NewVoucher("gateway")
	newer := fields(t, metadatatest.Marshal(t, metadatatest.Record("prefill-0", 7, 1, 0)), func(m map[string]any) { m["future"] = map[string]any{"x": 1} })
	var signed []byte
	metadata.ChangePayload(t, newer, func(p []byte) []byte {
		kid, sig, err := v.Sign(p)
		if err != nil {
			t.Fatal(err)
		}
		signed = metadata.Sealed(t, p, kid, sig, nil)
		return p
	})
	rec, err := metadata.UnmarshalSigned(signed, v)
	if err != nil {
		t.Fatal(err)
	}
	if rec.Engine != "prefill-0" || rec.KeyID != "gateway" {
		t.Errorf("got engine %s, key %s", rec.Engine, rec.KeyID)
	}
	other := bytes.Replace(signed, []byte("future"), []byte("suture"), 1)
	if _, err := metadata.UnmarshalSigned(other, v); err == nil {
		t.Error("a changed unknown field verifies")
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	good := metadatatest.Marshal(t, metadatatest.Record("prefill-0", 7, 1, 0))
	set := func(name string, v any) []byte {
		return fields(t, good, func(m map[string]any) { m[name] = v })
	}
	layout := func(name string, v any) []byte {
		return fields(t, good, func(m map[string]any) { m["layout"].(map[string]any)[name] = v })
	}
	payloadOf := func(b []byte) (p []byte) {
		metadata.ChangePayload(t, b, func(in []byte) []byte { p = in; return in })
		return p
	}
	record := func(payload []byte) []byte { return metadata.Sealed(t, payload, "", nil, nil) }
	regions := make([]map[string]int, metadata.MaxRegions+1)
	for i := range regions {
		regions[i] = map[string]int{"planes": 1, "blocks": 1, "length": 1}
	}
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"nothing":            {nil, "middle of a value"},
		"truncated":          {good[:len(good)-1], "middle of a value"},
		"trailing":           {append(bytes.Clone(good), 0), "after the end"},
		"too large":          {make([]byte, metadata.MaxRecordBytes+1), "bytes; want at most"},
		"a bare record":      {payloadOf(good), "no array of payload"},
		"three fields":       {append([]byte{0x93}, good[1:len(good)-1]...), "no array of payload"},
		"five fields":        {append(append([]byte{0x95}, good[1:]...), 0xc0), "no array of payload"},
		"payload is a list":  {[]byte{0x94, 0x91, 1, 0xa0, 0xc0, 0xc0}, "msgpack"},
		"payload is nil":     {[]byte{0x94, 0xc0, 0xa0, 0xc0, 0xc0}, "middle of a value"},
		"key id is a number": {append(bytes.Clone(good[:len(good)-3]), 5, 0xc0, 0xc0), "msgpack"},
		"payload trails":     {record(append(payloadOf(good), 0)), "after the end"},
		"not a map":          {record([]byte{0x93, 1, 2, 3}), "not a map"},
		"huge array":         {record([]byte{0x81, 0xa1, 'x', 0xdd, 0xff, 0xff, 0xff, 0xff}), "elements; want at most"},
		"huge string":        {record([]byte{0x81, 0xa1, 'x', 0xdb, 0xff, 0xff, 0xff, 0xff}), "middle of a value"},
		"deep":               {record(append([]byte{0x81, 0xa1, 'x'}, append(bytes.Repeat([]byte{0x91}, 100), 0xc0)...)), "nested deeper"},
		"doubled field":      {record([]byte{0x82, 0xa1, 'v', 1, 0xa1, 'v', 1}), "occurs twice"},
		"newer version":      {set("v", metadata.RecordVersion+1), "version is 2; want 1"},
		"no version":         {record([]byte{0x80}), "version is 0; want 1"},
		"version is text":    {set("v", "1"), "msgpack"},
		"name with a slash":  {set("engine", "a/b"), "engine name"},
		"long name":          {set("engine", strings.Repeat("a", 129)), "engine name"},
		"no generation":      {set("generation", 0), "generation is 0"},
		"unknown role":       {set("role", "router"), "role is"},
		"rank out of size":   {set("rank", metadata.Rank{TP: 1}), "rank is 0/0/1"},
		"size of 0":          {set("size", metadata.Rank{}), "size is 0/0/0"},
		"huge size":          {set("size", metadata.Rank{DP: 1 << 20, PP: 1 << 20, TP: 1 << 40}), "size is"},
		"long text":          {set("agent", strings.Repeat("a", metadata.MaxText+1)), "agent has 513 bytes"},
		"long blob":          {set("blob", make([]byte, metadata.MaxBlob+1)), "blob has"},
		"many regions":       {layout("regions", regions), "regions; want at most"},
		"region beyond":      {layout("regions", []metadata.Region{{Planes: 1, Blocks: 1 << 30, Length: 1 << 16, BlockStride: 1 << 12}}), "do not fit"},
		"region wraps":       {layout("regions", []metadata.Region{{Planes: 1, Blocks: 1, Base: ^uint64(0), Length: 2}}), "no stretch of memory"},
		"negative layer":     {layout("regions", []metadata.Region{{Layer: -1, Planes: 1, Blocks: 1, Length: 1}}), "layer is -1"},
		"unknown order":      {layout("order", "x"), "order is"},
		"uneven block":       {layout("physical_per_logical", 0), ""}, // an unknown field: passes
		"uneven kernel":      {layout("physical", 3), "block_tokens is 4"},
		"bytes for a string": {set("engine", 5), "msgpack"},
	} {
		_, err := metadata.Unmarshal(c.b)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: got %v; want none", name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v; want %q", name, err, c.want)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	v := metadatatest.NewVoucher("gateway")
	signed, err := metadatatest.Record("prefill-0", 7, 2, 1).Sign(v)
	if err != nil {
		f.Fatal(err)
	}
	own := metadatatest.AgentKey("prefill-0")
	byAgent := metadatatest.Bound(f, v, metadatatest.Record("prefill-0", 7, 2, 1), own)
	f.Add(metadatatest.Marshal(f, signed))
	f.Add(metadatatest.Marshal(f, byAgent))
	f.Add(metadatatest.Marshal(f, metadatatest.SignAs(f, metadatatest.Record("prefill-0", 7, 2, 1), own)))
	f.Add(fields(f, metadatatest.Marshal(f, byAgent), func(m map[string]any) { m["future"] = 1 }))
	f.Add([]byte{0x80})
	for _, payload := range []string{"\x80", "\x81\xa4blob\xc6\xff\xff\xff\xff", "\x81\xa9published\xc7\x05\xff\x01\x02\x03\x04\x05"} {
		f.Add(metadata.Sealed(f, []byte(payload), "", nil, nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, err := metadata.Unmarshal(b)
		if err != nil {
			return
		}
		if rec.Payload != nil && !bytes.Contains(b, rec.Payload) {
			t.Fatal("other bytes are kept than came")
		}
		plain := rec
		plain.Payload = nil // as this version encodes it
		again, err := metadata.Unmarshal(metadatatest.Marshal(t, plain))
		if err != nil {
			t.Fatalf("what was accepted is refused after encoding: %v", err)
		}
		again.Payload = nil
		if diff := cmp.Diff(plain, again); diff != "" {
			t.Fatalf("(-first +second):\n%s", diff)
		}
		if _, err := metadata.UnmarshalSigned(b, v); err == nil {
			if !bytes.Contains(b, rec.Signature) || len(rec.Signature) == 0 {
				t.Fatal("verified without a signature")
			}
			if len(rec.Binding) > 0 && rec.KeyID != metadatatest.KeyID(t, own) {
				t.Fatal("verified by a key that nobody bound")
			}
		}
	})
}

// TestCheckAgent: the name that a rank's agent has, and no other.
func TestCheckAgent(t *testing.T) {
	r := metadata.Record{Incarnation: metadata.Incarnation{Engine: "p", Generation: 26}, Rank: metadata.Rank{PP: 1, TP: 2}}
	for agent, want := range map[string]bool{
		"p@1a/0/1/2": true,
		"":           false, "p@1a/0/1/20": false, "p@1a/0/1/2 ": false, "p@1a/0/1/2#2": false, "p@1b/0/1/2": false, "x@1a/0/1/2": false,
	} {
		r.Agent = agent
		err := r.CheckAgent()
		if (err == nil) != want {
			t.Errorf("%q: %v; want %v", agent, err, want)
		}
		if err != nil && (!strings.Contains(err.Error(), `"p@1a/0/1/2"`) || !strings.Contains(err.Error(), strconv.Quote(agent))) {
			t.Errorf("%q: %v; want both names", agent, err)
		}
	}
}
