package routes

import (
	"testing"
	"time"

	"pdrouter/internal/metadatatest"
	"pdrouter/metadata"
)

// TestFault69SkewedGateways: the gateway that binds a record and the one that reads it differ by two hours.
func TestFault69SkewedGateways(t *testing.T) {
	v := metadatatest.NewVoucher("gateway")
	own := metadatatest.AgentKey("prefill-0")
	h := &Handler{voucher: v, cfg: Config{}.withDefaults()}
	for _, off := range []time.Duration{-2 * time.Hour, -time.Hour, time.Hour, 2 * time.Hour} {
		rec := metadatatest.Later(metadatatest.Record("prefill-0", 7, 1, 0), off)
		rec, err := h.vouch(metadatatest.SignAs(t, rec, own), Caller{Key: metadatatest.Public(own)}, time.Now().Add(off))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := metadata.UnmarshalSigned(metadatatest.Marshal(t, rec), v); err != nil {
			t.Errorf("clocks differ by %v: %v", off, err)
		}
	}
}
