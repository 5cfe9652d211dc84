package sched

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

func TestAggregate(t *testing.T) {
	for _, tc := range []struct {
		name    string
		events  string // rank:kind …; "fail" is the engine's own deadline
		want    string
		ignored int
	}{
		{"all ready", "0:ready 1:ready 2:ready", "nothing nothing released", 0},
		{"repeats do not count", "0:ready 0:ready 0:ready 1:ready 2:ready", "nothing nothing nothing nothing released", 2},
		{"strangers do not count", "0:ready 7:ready 8:ready 1:ready", "nothing nothing nothing nothing", 2},
		{"one failed", "0:ready 1:failed 2:failed 1:reusable 2:reusable", "nothing failed nothing nothing closed", 0},
		{"ready after the failure counts as reusable", "1:failed 0:ready 1:reusable 2:ready", "failed nothing nothing closed", 0},
		{"reusable without failed", "0:reusable 1:ready 2:ready", "nothing nothing nothing", 1},
		{"own deadline", "0:ready fail fail 1:failed 2:failed 2:reusable 1:reusable", "nothing failed nothing nothing nothing nothing closed", 0},
		{"nothing after the release", "0:ready 1:ready 2:ready 1:failed fail", "nothing nothing released nothing nothing", 1},
		{"all sent", "2:sent 0:sent 1:sent 1:sent", "nothing nothing freed nothing", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := NewRankBarrier([]metadata.Rank{{TP: 0}, {TP: 1}, {TP: 2}})
			var got []string
			for _, e := range strings.Fields(tc.events) {
				if e == "fail" {
					got = append(got, a.Fail().String())
					continue
				}
				var rank int
				rest, kind, _ := strings.Cut(e, ":")
				if _, err := fmt.Sscan(rest, &rank); err != nil {
					t.Fatal(err)
				}
				for k := kvplane.Ready; k <= kvplane.Sent; k++ {
					if k.String() == kind {
						got = append(got, a.Step(kvplane.Report{Rank: metadata.Rank{TP: rank}, Kind: k}).String())
					}
				}
			}
			if diff := cmp.Diff(strings.Join(got, " "), tc.want); diff != "" {
				t.Errorf("verdicts differ (-got +want):\n%s", diff)
			}
			if a.Ignored() != tc.ignored {
				t.Errorf("%d reports were ignored; want %d", a.Ignored(), tc.ignored)
			}
		})
	}
}
