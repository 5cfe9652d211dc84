package refengine

import (
	"math/rand/v2"
	"testing"
)

// BenchmarkForward is a step of one sequence: a prompt of 512 tokens, and one token after 4,096.
func BenchmarkForward(b *testing.B) {
	for _, c := range []struct {
		name          string
		tokens, first int
	}{{"prompt", 512, 0}, {"token", 1, 4096}} {
		b.Run(c.name, func(b *testing.B) {
			cfg := Config{Shape: Shape{Layers: 2, Heads: 4, HeadDim: 8}, Blocks: 512}.withDefaults()
			m := NewModel(cfg.Shape)
			g, err := newGroup(m, cfg)
			if err != nil {
				b.Fatal(err)
			}
			defer g.close()
			it := item{first: c.first, states: make([]hidden, c.tokens)}
			r := rand.New(rand.NewPCG(1, 2))
			for _, block := range r.Perm(cfg.Blocks) {
				it.table = append(it.table, int32(block))
			}
			for i := range it.states {
				it.states[i] = m.embed(int32(i%256), c.first+i)
			}
			items := []item{it}
			b.ReportAllocs()
			for b.Loop() {
				g.forward(items)
			}
		})
	}
}
