package metadata_test

import (
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/internal/redistest"
	"pdrouter/metadata"
	"pdrouter/metadata/cache"
)

// TestFault43WriteAccessToRedisIsNotEnough does what somebody could who may write to Redis but has neither a gateway's
// key nor the agent's: nothing of it is used, and each try is counted.
func TestFault43WriteAccessToRedisIsNotEnough(t *testing.T) {
	server := redistest.Start(t)
	v := metadatatest.NewVoucher("gateway")
	own, thief := metadatatest.AgentKey("prefill-0"), metadatatest.AgentKey("thief")
	rec := metadatatest.Record("prefill-0", 7, 1, 0)
	good := metadatatest.Bound(t, v, rec, own)
	signed := func(rec metadata.Record, key ed25519.PrivateKey, binding []byte) []byte {
		r := metadatatest.SignAs(t, rec, key)
		r.Binding = binding
		return metadatatest.Marshal(t, r)
	}
	change := func(f func(*metadata.Record)) []byte {
		r := good
		r.Payload = nil
		f(&r)
		return metadatatest.Marshal(t, r)
	}
	whole, err := rec.Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	ended, err := metadata.NewBinding(v, rec, metadatatest.Public(own), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := metadata.NewBinding(metadatatest.NewVoucher("stranger"), rec, metadatatest.Public(thief), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	asGateway, err := metadata.NewBinding(metadatatest.NewVoucher("stranger"), rec, metadatatest.Public(thief), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	_, e, err := metadata.ParseBinding(asGateway)
	if err != nil {
		t.Fatal(err)
	}
	asGateway = metadata.Sealed(t, e.Payload, "gateway", e.Signature, nil)
	rebound := func(field string, value any) []byte {
		return metadata.ChangePayload(t, good.Binding, func(p []byte) []byte { return metadata.ReplaceField(t, p, field, value) })
	}
	theirs := metadatatest.Bound(t, v, metadatatest.Record("thief", 7, 1, 0), thief)
	long := rec
	long.Published, long.Expires = rec.Published.Add(-25*time.Hour), rec.Expires.Add(-25*time.Hour)
	longSigned, err := long.Sign(v)
	if err != nil {
		t.Fatal(err)
	}
	evil := rec
	evil.Blob, evil.Doorbell = []byte("mine"), "192.0.2.1:1"
	for name, value := range map[string][]byte{
		"not signed":                          metadatatest.Marshal(t, evil),
		"signed by the thief alone":           signed(evil, thief, nil),
		"blob replaced":                       change(func(r *metadata.Record) { r.Blob = []byte("mine") }),
		"blob replaced under a gateway's":     metadatatest.Marshal(t, func() metadata.Record { r := whole; r.Blob, r.Payload = []byte("mine"), nil; return r }()),
		"lease made longer":                   change(func(r *metadata.Record) { r.Expires = r.Expires.Add(time.Hour) }),
		"signed anew, the agent's binding":    signed(evil, thief, good.Binding),
		"binding of the thief's engine":       signed(evil, thief, theirs.Binding),
		"binding of another generation":       signed(rec, own, metadatatest.Bound(t, v, metadatatest.Record("prefill-0", 6, 1, 0), own).Binding),
		"binding of another rank":             signed(rec, own, metadatatest.Bound(t, v, metadatatest.Record("prefill-0", 7, 2, 1), own).Binding),
		"binding of another key":              signed(rec, own, metadatatest.Bound(t, v, rec, thief).Binding),
		"binding by a stranger":               signed(evil, thief, stranger),
		"binding under the gateway's name":    signed(evil, thief, asGateway),
		"binding that has ended":              signed(rec, own, ended),
		"binding made longer":                 signed(rec, own, rebound("until_ms", time.Now().Add(1000*time.Hour).UnixMilli())),
		"binding with the thief's key":        signed(evil, thief, rebound("key", []byte(metadatatest.Public(thief)))),
		"binding truncated":                   signed(rec, own, good.Binding[:len(good.Binding)-1]),
		"binding too large":                   metadata.Sealed(t, good.Payload, good.KeyID, good.Signature, make([]byte, metadata.MaxBinding+1)),
		"binding taken away":                  signed(rec, own, nil),
		"gateway's signature for the agent's": change(func(r *metadata.Record) { r.Signature = whole.Signature }),
		"gateway's signature and binding":     metadatatest.Marshal(t, func() metadata.Record { r := whole; r.Binding = good.Binding; return r }()),
		"signature of the binding": change(func(r *metadata.Record) {
			_, e, _ := metadata.ParseBinding(r.Binding)
			r.KeyID, r.Signature, r.Binding = e.KeyID, e.Signature, nil
		}),
		"key id changed":              change(func(r *metadata.Record) { r.KeyID = "gateway" }),
		"no signature":                change(func(r *metadata.Record) { r.Signature = nil }),
		"another engine's record":     metadatatest.Marshal(t, theirs),
		"another generation's record": metadatatest.Marshal(t, metadatatest.Bound(t, v, metadatatest.Record("prefill-0", 6, 1, 0), own)),
		"another rank's record":       metadatatest.Marshal(t, metadatatest.Bound(t, v, metadatatest.Record("prefill-0", 7, 2, 1), own)),
		"record of the day before":    metadatatest.Marshal(t, longSigned),
		"truncated":                   metadatatest.Marshal(t, good)[:100],
		"too large":                   make([]byte, metadata.MaxRecordBytes+1),
		"doubled field": metadata.ChangePayload(t, metadatatest.Marshal(t, good), func(p []byte) []byte {
			return append(append([]byte{p[0], p[1], p[2] + 1}, p[3:]...), "\xa4blob\xc0"...) // p is a map of two bytes of length
		}),
		"binding as payload": metadata.Sealed(t, e.Payload, good.KeyID, good.Signature, good.Binding),
		"payload of another": metadata.Sealed(t, theirs.Payload, good.KeyID, good.Signature, good.Binding),
	} {
		t.Run(name, func(t *testing.T) {
			s := metadatatest.RedisAt(t, server, v, strings.ReplaceAll(name, " ", "-"))
			metadatatest.Put(t, s, good, nil)
			if got, err := s.Engine(t.Context(), "prefill-0"); err != nil || len(got) != 1 {
				t.Fatalf("the true record: got %+v, %v; want it", got, err)
			}
			if err := s.DB.Set(t.Context(), s.RankKey(rec.Incarnation, "0/0/0"), value, time.Minute).Err(); err != nil {
				t.Fatal(err)
			}
			before := s.Quarantined()
			if got, err := s.Engine(t.Context(), "prefill-0"); !errors.Is(err, metadata.ErrNotFound) {
				t.Fatalf("got %+v, %v; want ErrNotFound: an engine without a record is paired with nobody", got, err)
			}
			if n := s.Quarantined() - before; n != 1 {
				t.Errorf("%d values quarantined; want 1", n)
			}
			c, err := cache.New(s, cache.Config{}, metadatatest.Quiet())
			if err != nil {
				t.Fatal(err)
			}
			whole := make(chan struct{}, 1)
			c.Subscribe(func(engine string) {
				if engine == "" {
					whole <- struct{}{}
				}
			})
			stop := metadatatest.Background(t, c.Run)
			<-whole
			stop()
			if got, ok := c.Engine("prefill-0"); ok {
				t.Errorf("a gateway's copy holds %+v", got)
			}
		})
	}
}
