package forecast

import "testing"

// TestGonePairs: nothing is kept of the pairs of an engine that is gone, also if one of its requests ends after that.
func TestGonePairs(t *testing.T) {
	m := NewModel()
	a, b, c := m.NewEngine(), m.NewEngine(), m.NewEngine()
	learn := func() {
		for _, pair := range [][2]*Engine{{a, c}, {b, c}, {c, a}} {
			m.Moved(0, pair[0], pair[1], 1000, .1)
		}
	}
	learn()
	a.Gone()
	learn()
	if _, kept := m.handOffs.pairs[[2]*Engine{b, c}]; !kept || len(m.handOffs.pairs) != 1 {
		t.Errorf("%d pairs are kept, that of the other two %v; want that alone", len(m.handOffs.pairs), kept)
	}
}
