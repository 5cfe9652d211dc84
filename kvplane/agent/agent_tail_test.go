package agent

import (
	"fmt"
	"testing"
	"testing/synctest"

	"pdrouter/kvplane"
	"pdrouter/kvplane/memory/view"
	"pdrouter/kvplane/plan/plantest"
	"pdrouter/kvplane/transport"
)

// TestReadyNamesWhatStaysOld: D's blocks hold twice the tokens of P's. Of the last one every byte is either written or
// named in the report, and where the last block is full, or blocks are equal, nothing is named.
func TestReadyNamesWhatStaysOld(t *testing.T) {
	for _, tc := range []struct{ p, d, tokens, from int }{
		{p: 16, d: 32, tokens: 10, from: 16}, {p: 16, d: 32, tokens: 33, from: 48}, {p: 16, d: 32, tokens: 20}, {p: 16, d: 16, tokens: 10},
		{p: 32, d: 16, tokens: 10},
	} {
		t.Run(fmt.Sprintf("P %d D %d, %d tokens", tc.p, tc.d, tc.tokens), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := newFakeNet()
				sp, sd := side(4), side(2)
				sp.Logical, sp.PP, sp.Stages = tc.p, 2, [][]int{{0}, {1}}
				sd.Logical = tc.d
				p, d, _ := pairOf(t, func() transport.Transport { return net.transport() }, sp, sd, kvplane.Times{})
				id := kvplane.NewTransferID()
				from := []kvplane.BlockList{{Blocks: []int32{5, 3, 9}[:(tc.tokens+tc.p-1)/tc.p]}}
				to := []kvplane.BlockList{{Blocks: []int32{20, 2}[:(tc.tokens+tc.d-1)/tc.d]}}
				p.fill(id, from[0], tc.tokens)
				for _, m := range d.memory {
					for i := range m {
						m[i] = 0xff
					}
				}
				p.offer(id, d, tc.tokens, from)
				d.expect(id, p, [2]int{0, tc.tokens}, to)
				for _, r := range d.await(id, kvplane.Ready) {
					if (len(r.Rest) > 0) != (tc.from > 0) {
						t.Errorf("rank %s names %v", r.Rank, r.Rest)
					}
					for _, x := range r.Rest {
						clear(view.Bytes(x.Local, x.Length))
					}
				}
				if wrong := d.wrong(id, to[0], 0, tc.tokens); wrong > 0 {
					t.Errorf("%d bytes are wrong", wrong)
				}
				if tc.from == 0 {
					return
				}
				left := 0
				for _, rec := range d.records {
					plantest.Each(d.spec, rec, to[0], tc.from, len(to[0].Blocks)*tc.d, func(at uint64, _ string) { left += int(view.Bytes(at, 1)[0]) })
				}
				if left > 0 {
					t.Error("old memory is left behind the last token that was written")
				}
			})
		})
	}
}
