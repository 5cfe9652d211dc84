package refengine

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"pdrouter/metadata"
)

// TestOldMemoryIsClearedBeforeDecode: decode's blocks hold 32 tokens and prefill's 16. What nobody has written in the
// last block is zero when decode has run, on the host and on a device, and the answer is right.
func TestOldMemoryIsClearedBeforeDecode(t *testing.T) {
	for _, on := range []string{"host", "device"} {
		for _, order := range []metadata.Order{metadata.HeadsFirst, metadata.TokensFirst} {
			t.Run(on+" "+string(order), func(t *testing.T) {
				var book phonebook
				var devices fakeDevices
				shape := Shape{Seed: 29, Layers: 2, Heads: 4, HeadDim: 2}
				pc := Config{Name: "p", Shape: shape, TP: 2, BlockTokens: 16, Blocks: 16, Order: order}
				dc := Config{Name: "d", Shape: shape, TP: 2, BlockTokens: 32, Blocks: 8, Order: order}
				if on == "device" {
					dc.Device = devices.device
				}
				x := pair{p: book.open(t, pc), d: book.open(t, dc)}
				x.d.ask(func() {
					for _, r := range x.d.group.ranks {
						for l := range shape.Layers {
							for b := range dc.Blocks {
								old := r.cache.memory.change(r.cache.block(l, int32(b)))
								copy(old, bytes.Repeat([]byte{0xff}, len(old)))
							}
						}
						r.cache.memory.settle()
					}
				})
				q := Request{Tokens: prompt(rand.New(rand.NewPCG(1, 1)), 10), MaxTokens: 3, IgnoreEnd: true}
				p, d := x.dispatch(t, q)
				if _, err := collect(p); err != nil {
					t.Fatal(err)
				}
				got, err := collect(d)
				if err != nil || !slices.Equal(got, naive(x.d.model, q.Tokens, 3, 0, true)) {
					t.Errorf("decode answered %v, %v", got, err)
				}
				used := 0
				x.d.ask(func() {
					for _, r := range x.d.group.ranks {
						for b := range dc.Blocks {
							first := r.cache.memory.view(r.cache.block(0, int32(b)))
							if bytes.Equal(first, bytes.Repeat([]byte{0xff}, len(first))) {
								continue // nobody's
							}
							used++
							for l := range shape.Layers {
								all := r.cache.memory.view(r.cache.block(l, int32(b)))
								for plane := range planes {
									for h := range r.cache.heads.count {
										for place := 16; place < 32; place++ {
											at := r.cache.at(plane, r.cache.heads.first+h, place)
											if n := shape.HeadDim * wordBytes; !bytes.Equal(all[at:at+n], make([]byte, n)) {
												t.Fatalf("layer %d, plane %d, head %d, place %d is old memory", l, plane, h, place)
											}
										}
									}
								}
							}
						}
						r.cache.memory.settle()
					}
				})
				if used != 2 {
					t.Errorf("%d blocks were used; want one of each rank", used)
				}
				x.settled(t)
			})
		}
	}
}
