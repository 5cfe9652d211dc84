package overrides

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/config"
)

// TestOverridesConverge has gateways tell each other their overrides in any order, some twice and some late: all end with the same.
func TestOverridesConverge(t *testing.T) {
	for seed := range uint64(1000) {
		random := rand.New(rand.NewPCG(seed, 5))
		gateways := make([]ByEngine, 3)
		for range 30 {
			i, j := random.IntN(3), random.IntN(3)
			name := fmt.Sprint("e", random.IntN(4))
			rec := Override{Engine: name, At: int64(random.IntN(10)), By: fmt.Sprint(i, random.IntN(2)), Drain: AsSourced}

			rec.Removed = strings.HasSuffix(rec.By, "1")
			rec.Drain = Drain(rec.By)
			gateways[i], _ = gateways[i].merged(ByEngine{name: rec})
			gateways[j], _ = gateways[j].merged(gateways[i])
		}
		for range 2 {
			for i := range gateways {
				for j := range gateways {
					gateways[i], _ = gateways[i].merged(gateways[j])
				}
			}
		}
		for _, g := range gateways[1:] {
			if diff := cmp.Diff(g, gateways[0]); diff != "" {
				t.Fatalf("seed %d: two gateways differ:\n%s", seed, diff)
			}
		}
		if _, other := gateways[0].merged(gateways[1]); other {
			t.Fatalf("seed %d: the same again is something else", seed)
		}
	}
}

// TestOverrideFormat: what one gateway writes another one reads.
func TestOverrideFormat(t *testing.T) {
	wait := time.Minute
	e := config.Engine{Name: "x", URL: "http://x:1", Control: "http://x:2", SideChannel: "x:3", BearerTokenFile: "/k"}
	w := NewStore(&fakeCache{}, true, nil)
	rec := w.put(Override{Engine: "x", Model: "m", List: "prefill", Entry: &e, Drain: DrainOn, Removed: true, Wait: &wait, By: "somebody"})
	other := NewStore(&fakeCache{}, true, nil)
	if !other.Learn(w.shared.(*fakeCache).facts) {
		t.Fatal("nothing was learnt")
	}
	if diff := cmp.Diff(other.All(), ByEngine{"x": rec}); diff != "" {
		t.Error("(-got +want):\n" + diff)
	}
}
