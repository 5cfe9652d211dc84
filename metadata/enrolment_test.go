package metadata

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"
)

// fakeEnroller is a voucher that derives keys anybody can tell.
type fakeEnroller struct{ *fakeVoucher }

func (fakeEnroller) Enrolment(id string) ([][]byte, error) {
	return [][]byte{[]byte("secret key of " + id), []byte("older key of " + id)}, nil
}

// TestEnrolmentIsForTheWriter: the keys of an engine's run are told to whoever has published its record, in the answer
// to that, and are seen nowhere else.
func TestEnrolmentIsForTheWriter(t *testing.T) {
	var log bytes.Buffer
	h, err := NewHandler(HandlerConfig{}, HandlerParts{Store: NewMemory(), Authorizer: fakeAuthorizer{}, Voucher: fakeEnroller{newFakeVoucher("gateway")},
		Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(h)
	defer srv.Close()
	rec := record("prefill-0", 7, 2, 1)
	want := [][]byte{[]byte("secret key of prefill-0@7"), []byte("older key of prefill-0@7")}
	c := newClient(t, srv.URL, "write:prefill-0", nil)
	var got Enrolment
	var of Incarnation
	c.Enrolled(func(inc Incarnation, e Enrolment) { of, got = inc, e }, nil)
	if err := c.Put(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got.Keys, want); diff != "" || of != rec.Incarnation {
		t.Errorf("keys of %s (-got +want):\n%s", of.ID(), diff)
	}
	if off := time.Since(got.Now).Abs(); off > time.Minute {
		t.Errorf("the gateway's clock is off by %v", off)
	}
	if s := fmt.Sprintf("%v %+v %#v %s", got, got, got, got); bytes.Contains([]byte(s), []byte("secret")) {
		t.Errorf("printed as %s", s)
	}

	base := srv.URL + "/metadata/v1/engines"
	refused := map[string]exchange{
		"another engine's writer": send(t, "PUT", base+"/prefill-0/ranks/0/0/1", "write:prefill-1", marshal(t, later(rec, time.Second))),
		"a reader":                send(t, "PUT", base+"/prefill-0/ranks/0/0/1", "read:prefill", marshal(t, later(rec, time.Second))),
		"an older run":            send(t, "PUT", base+"/prefill-0/ranks/0/0/1", "write:prefill-0", marshal(t, record("prefill-0", 6, 2, 1))),
		"a replay":                send(t, "PUT", base+"/prefill-0/ranks/0/0/1", "write:prefill-0", marshal(t, rec)),
	}
	for name, a := range refused {
		if a.status < 400 {
			t.Errorf("%s: got %d", name, a.status)
		}
	}
	for _, path := range []string{"", "/prefill-0", "/prefill-0/ranks/0/0/1"} {
		for _, accept := range []string{contentType, "application/json"} {
			a := send(t, "GET", base+path, "all", nil, "Accept", accept)
			if a.status != http.StatusOK {
				t.Errorf("GET %s: got %d", path, a.status)
			}
			refused["GET "+path+accept] = a
		}
	}
	refused["log"] = exchange{body: log.Bytes()}
	for name, a := range refused {
		for _, key := range want {
			if bytes.Contains(a.body, key) || bytes.Contains(a.body, []byte("c2VjcmV0")) {
				t.Errorf("%s: a key is in %q", name, a.body)
			}
		}
	}
}

func TestEnrolmentOfAGatewayWithoutKeys(t *testing.T) {
	c := newClient(t, serve(t, NewMemory(), newFakeVoucher("gateway")), "all", nil)
	told := 0
	c.Enrolled(func(_ Incarnation, e Enrolment) {
		told++
		if len(e.Keys) != 0 || !e.Now.IsZero() {
			t.Errorf("told %d keys and the time %v; want none", len(e.Keys), e.Now)
		}
	}, nil)
	if err := c.Put(t.Context(), record("prefill-0", 7, 1, 0)); err != nil || told != 1 {
		t.Errorf("told %d times, %v; want once", told, err)
	}
}

// fakeRotation enrols for a key that changes, as when a gateway is started anew with another one.
type fakeRotation struct {
	*fakeVoucher
	key atomic.Pointer[string]
}

func (f *fakeRotation) Enrolment(id string) ([][]byte, error) {
	return [][]byte{[]byte(*f.key.Load() + id)}, nil
}

// TestPublisherBringsANewKey: an engine learns a gateway's new key as it renews its records.
func TestPublisherBringsANewKey(t *testing.T) {
	v := &fakeRotation{fakeVoucher: newFakeVoucher("gateway")}
	set := func(key string) { v.key.Store(&key) }
	set("first ")
	c := newClient(t, serve(t, NewMemory(), v), "all", nil)
	told := make(chan string, 1000)
	c.Enrolled(func(_ Incarnation, e Enrolment) { told <- string(e.Keys[0]) }, nil)
	p, err := NewPublisher(c, PublisherConfig{TTL: 150 * time.Millisecond}, quiet(), record("prefill-0", 7, 1, 0))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	if got := <-told; got != "first prefill-0@7" {
		t.Errorf("told %q", got)
	}
	set("second ")
	deadline := time.After(30 * time.Second)
	for got := ""; got != "second prefill-0@7"; {
		select {
		case got = <-told:
		case <-deadline:
			t.Fatalf("told %q last; want the second key", got)
		}
	}
	cancel()
	<-ended
}

func FuzzEnrolment(f *testing.F) {
	for _, e := range []enrolmentBody{{}, {Keys: [][]byte{make([]byte, 32), {1}}, Now: 1 << 40}, {Keys: make([][]byte, 9)}} {
		b, err := msgpack.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := unmarshalEnrolment(b, Record{}, nil)
		if err != nil && len(e.Keys) > 0 {
			t.Fatal("keys beside an error")
		}
		if len(e.Keys) > maxEnrolmentKeys {
			t.Fatalf("%d keys", len(e.Keys))
		}
		for _, k := range e.Keys {
			if len(k) == 0 || len(k) > maxEnrolmentBytes {
				t.Fatalf("a key of %d bytes", len(k))
			}
		}
	})
}
