package router_test

import (
	"testing"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

func TestCouplesOfTheConfiguration(t *testing.T) {
	one := func(name string) []config.Engine { return []config.Engine{{Name: name, URL: "http://" + name + ":1"}} }
	r, err := router.New(config.Config{Models: []config.Model{
		{Name: "a", Connector: connector.NameKVPlane, Prefill: one("pa"), Decode: one("da")},
		{Name: "b", Connector: connector.NameKVPlane, Prefill: one("pb"), Decode: one("db")},
		{Name: "c", Connector: connector.NameNone, Engines: one("c")},
	}}, router.Parts{Records: &routertest.Records{}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for pair, want := range map[[2]string]bool{
		{"pa", "da"}: true, {"da", "pa"}: true, {"pb", "db"}: true,
		{"pa", "db"}: false, {"da", "pb"}: false, {"pa", "pb"}: false, {"pa", "pa"}: false, {"c", "c"}: false,
		{"c", "da"}: false, {"unknown", "da"}: false, {"pa", "unknown"}: false, {"", ""}: false,
	} {
		if got := r.Paired(pair[0], pair[1]); got != want {
			t.Errorf("%s and %s: got %t; want %t", pair[0], pair[1], got, want)
		}
	}
}
