package metadata_test

import (
	"bytes"
	"crypto/ed25519"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
	"pdrouter/metadata/client"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

// An agent may encode as its library does and write fields that gateways do not know: what it signed reaches whoever
// reads, byte for byte.
func TestWhatAnAgentSignedIsKept(t *testing.T) {
	v := metadatatest.NewVoucher("gateway")
	own := metadatatest.AgentKey("prefill-0")
	var m map[string]any
	if err := msgpack.Unmarshal(metadatatest.SignAs(t, metadatatest.Record("prefill-0", 7, 1, 0), own).Payload, &m); err != nil {
		t.Fatal(err)
	}
	m["future"] = map[string]any{"x": 1}
	var b bytes.Buffer
	enc := msgpack.NewEncoder(&b)
	enc.SetSortMapKeys(true)
	enc.UseCompactInts(true)
	if err := enc.Encode(m); err != nil {
		t.Fatal(err)
	}
	payload := b.Bytes()
	body := metadata.Sealed(t, payload, metadatatest.KeyID(t, own), ed25519.Sign(own, append([]byte(metadata.AgentContext), payload...)), nil)

	s := redistest.Start(t)
	shared := metadatatest.RedisAt(t, s, v, "kept")
	base := routestest.Serve(t, shared, v, routestest.Callers{"bound": {Engine: "prefill-0", Key: metadatatest.Public(own)}})
	if got := routestest.Send(t, "PUT", base+"/metadata/v1/engines/prefill-0/ranks/0/0/0", "bound", body); got.Status != http.StatusNoContent {
		t.Fatalf("got %d %s; want 204", got.Status, got.Body)
	}
	c, err := client.New(client.Config{URL: base}, func() (string, error) { return "bound", nil }, v, nil)
	if err != nil {
		t.Fatal(err)
	}
	recs, err := c.Engine(t.Context(), "prefill-0")
	if err != nil || len(recs) != 1 {
		t.Fatalf("read %d records, %v; want one", len(recs), err)
	}
	if !bytes.Equal(recs[0].Payload, payload) {
		t.Error("what was signed has changed")
	}
	if err := recs[0].Verify(v); err != nil {
		t.Error(err)
	}
	other := bytes.Replace(metadatatest.Marshal(t, recs[0]), []byte("future"), []byte("suture"), 1)
	if _, err := metadata.UnmarshalSigned(other, v); err == nil {
		t.Error("a changed unknown field verifies")
	}
}

// The largest record that an agent may send is still within bounds with its binding, or refused as too large.
func TestBoundRecordIsBounded(t *testing.T) {
	v := metadatatest.NewVoucher("gateway")
	own := metadatatest.AgentKey("prefill-0")
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	rec.Engine = strings.Repeat("e", metadata.MaxName)
	rec.Generation = 1<<64 - 1
	b, err := metadata.NewBinding(v, rec, metadatatest.Public(own), time.Now().Add(time.Hour))
	if err != nil || len(b) > metadata.MaxBinding/2 {
		t.Fatalf("binding has %d bytes, %v; want at most %d", len(b), err, metadata.MaxBinding/2)
	}
	url := routestest.Serve(t, store.NewMemory(), v, routestest.Callers{"bound": {Engine: "prefill-0", Key: metadatatest.Public(own)}}) + "/metadata/v1/engines/prefill-0/ranks/0/0/0"
	rec = metadatatest.Record("prefill-0", 7, 1, 0)
	payload := metadatatest.SignAs(t, rec, own).Payload
	room := metadata.MaxRecordBytes - len(metadatatest.Marshal(t, metadatatest.SignAs(t, rec, own))) - len("\xa6future\xc6....") - 8 // all but a few bytes
	fill := append([]byte("\xa6future\xc6"), byte(room>>24), byte(room>>16), byte(room>>8), byte(room))
	payload = bytes.Join([][]byte{{payload[0], payload[1], payload[2] + 1}, payload[3:], fill, make([]byte, room)}, nil) // a map of two bytes of length
	body := metadata.Sealed(t, payload, metadatatest.KeyID(t, own), ed25519.Sign(own, append([]byte(metadata.AgentContext), payload...)), nil)
	if len(body) > metadata.MaxRecordBytes {
		t.Fatalf("body has %d bytes", len(body))
	}
	routestest.WantError(t, "no room for the binding", routestest.Send(t, "PUT", url, "bound", body), 413, "too_large")
}

func FuzzBinding(f *testing.F) {
	v := metadatatest.NewVoucher("gateway")
	own := metadatatest.AgentKey("prefill-0")
	rec := metadatatest.Record("prefill-0", 7, 2, 1)
	good, err := metadata.NewBinding(v, rec, metadatatest.Public(own), time.UnixMilli(1<<42)) // the same in every process that fuzzes
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:50])
	f.Add([]byte{0x80})
	f.Add(metadata.Sealed(f, []byte("\x81\xa3key\xc4\x20"+strings.Repeat("k", 32)), "gateway", nil, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := rec
		r.Binding = b
		key, err := metadata.BoundKey(v, r, time.Now())
		if err != nil {
			return
		}
		if !bytes.Equal(key, metadatatest.Public(own)) {
			t.Fatalf("the key %x was bound by nobody", key)
		}
		got, _, err := metadata.ParseBinding(b)
		want, _, _ := metadata.ParseBinding(good)
		if diff := cmp.Diff(got, want); err != nil || diff != "" {
			t.Fatalf("(-got +want) %v:\n%s", err, diff)
		}
	})
}
