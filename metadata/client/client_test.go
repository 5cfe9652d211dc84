package client

import (
	"errors"
	"testing"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
	"pdrouter/metadata/routes/routestest"
	"pdrouter/metadata/store"
)

func newClient(t *testing.T, url, token string, trust metadata.Voucher) *Client {
	t.Helper()
	c, err := New(Config{URL: url, Timeout: 10 * time.Second}, func() (string, error) { return token, nil }, trust, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestClientOverTheRoutes(t *testing.T) {
	v := metadatatest.NewVoucher("gateway")
	url := routestest.Serve(t, store.NewMemory(), v, routestest.Tokens{})
	c := newClient(t, url+"/", "all", v)
	ctx := t.Context()
	r0, r1 := metadatatest.Record("prefill-0", 7, 2, 0), metadatatest.Record("prefill-0", 7, 2, 1)
	for _, rec := range []metadata.Record{r1, r0} {
		if err := c.Put(ctx, rec); err != nil {
			t.Fatal(err)
		}
	}
	recs, err := c.Engine(ctx, "prefill-0")
	if err != nil || len(recs) != 2 || recs[0].KeyID != "gateway" {
		t.Fatalf("got %+v, %v; want two records signed by the gateway", recs, err)
	}
	if _, err := newClient(t, url, "all", metadatatest.NewVoucher("other")).Engine(ctx, "prefill-0"); err == nil {
		t.Error("a record of an untrusted gateway was accepted")
	}
	for name, got := range map[string]error{
		"stale put":      c.Put(ctx, r0),
		"old generation": c.Delete(ctx, metadata.Incarnation{Engine: "prefill-0", Generation: 6}, r0.Rank),
	} {
		if !errors.Is(got, metadata.ErrStale) {
			t.Errorf("%s: got %v; want ErrStale", name, got)
		}
	}
	if err := c.Delete(ctx, r0.Incarnation, r0.Rank); err != nil {
		t.Error(err)
	}
	if recs, err := c.Engine(ctx, "prefill-0"); err != nil || len(recs) != 1 || recs[0].Rank != r1.Rank {
		t.Errorf("after the deletion of a rank: got %+v, %v; want the other", recs, err)
	}
	var status *StatusError
	if err := newClient(t, url, "none", nil).Put(ctx, metadatatest.Later(r0, 1)); !errors.As(err, &status) || status.Status != 401 {
		t.Errorf("bad token: got %v; want status 401", err)
	}
	for name, cfg := range map[string]Config{"no URL": {}, "no scheme": {URL: "host:1"}, "negative": {URL: "http://h", Timeout: -1}} {
		if _, err := New(cfg, func() (string, error) { return "", nil }, nil, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
