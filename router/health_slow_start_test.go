package router_test

import (
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// TestSlowStartOnReload: engines that a reload adds, or drains no more, start slowly; those of the start have their whole share.
func TestSlowStartOnReload(t *testing.T) {
	s := routertest.NewPool(t, connector.NameNone, 0, 3, nil)
	all := s.Config.Models[0].Engines
	cfg := s.Config
	cfg.Models = []config.Model{{Name: "tiny", Connector: connector.NameNone, Engines: []config.Engine{all[0], all[1]}}}
	cfg.Models[0].Engines[1].Drain = true
	r, err := router.New(cfg, router.Parts{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	next := cfg
	next.Models = []config.Model{{Name: "tiny", Connector: connector.NameNone, Engines: []config.Engine{all[0], all[1], all[2]}}}
	next.Models[0].Engines[1].Drain = false
	if err := r.Apply(next, router.Parts{}); err != nil {
		t.Fatal(err)
	}
	for i, slow := range []bool{false, true, true} {
		if e := r.Stats().Engines[i]; (e.Share < 1) != slow {
			t.Errorf("engine %d: %+v; want slow start %v", i, e, slow)
		}
	}
}
