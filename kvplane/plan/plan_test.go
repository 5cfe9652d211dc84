package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transfer"
)

func bytesText(rs []transfer.Range) string {
	var at []uint64
	for _, r := range rs {
		for i := range r.Length {
			at = append(at, r.Remote+i)
		}
	}
	slices.Sort(at)
	var out []string
	for i := 0; i < len(at); {
		j := i
		for j+1 < len(at) && at[j+1] == at[j]+1 {
			j++
		}
		out = append(out, fmt.Sprintf("%d..%d", at[i], at[j]))
		i = j + 1
	}
	return strings.Join(out, " ")
}

func TestPlanVectors(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			p, d := v.p.WithDefaults(), v.d.WithDefaults()
			got, only := map[string]string{}, []string{}
			for _, pr := range p.Records("p") {
				for _, dr := range d.Records("d") {
					name := fmt.Sprintf("P%d→D%d", pr.Rank.TP, dr.Rank.TP)
					if p.PP > 1 {
						name = fmt.Sprintf("P%d/%d→D%d", pr.Rank.PP, pr.Rank.TP, dr.Rank.TP)
					}
					q, err := New(pr, dr, v.allow)
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if !q.related() {
						continue
					}
					rs, err := q.Plan(nil, v.n, v.need, p.Lists, d.Lists)
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if len(rs) > 0 {
						got[name] = plantest.RangesText(rs)
					}
					if !q.writes() {
						only = append(only, name)
					}
					if v.rest != "" {
						if rest := bytesText(q.Rest(nil, v.n, d.Lists)); rest != v.rest {
							t.Errorf("rest of %s is %q; want %q", name, rest, v.rest)
						}
					}
				}
			}
			if diff := cmp.Diff(got, v.want); diff != "" {
				t.Errorf("ranges differ (-got +want):\n%s", diff)
			}
			if diff := cmp.Diff(strings.Join(only, " "), v.only); diff != "" {
				t.Errorf("notify-only pairs differ (-got +want):\n%s", diff)
			}
		})
	}
}
