package agent

import (
	"slices"
	"testing"
	"time"
)

// TestSuspects: a peer is due that keeps more than its share for the grace, without a break, or anything for the age.
func TestSuspects(t *testing.T) {
	start := time.Now()
	p := RebuildPolicy{}.WithDefaults()
	var s RebuildCandidates[string]
	for i, c := range []struct {
		at     time.Duration
		blocks map[string]int // of 100, all since the start
		want   []string
	}{
		{0, map[string]int{"few": 5, "many": 6}, nil},
		{5*time.Second - 1, map[string]int{"few": 5, "many": 99}, nil},
		{5 * time.Second, map[string]int{"few": 5, "many": 6}, []string{"many"}},
		{6 * time.Second, map[string]int{"few": 5, "many": 5}, nil},
		{7 * time.Second, map[string]int{"few": 5, "many": 6}, nil}, // from here again
		{12*time.Second - 1, map[string]int{"few": 6, "many": 6}, nil},
		{12 * time.Second, map[string]int{"few": 6, "many": 6}, []string{"many"}},
		{13 * time.Second, map[string]int{"few": 6}, nil},
		{17 * time.Second, map[string]int{"few": 6, "many": 6}, []string{"few"}},
		{time.Minute - 1, map[string]int{"last": 1}, nil},
		{time.Minute, map[string]int{"last": 1, "none": 0}, []string{"last"}},
	} {
		kept := map[string]HeldBlocks{}
		for peer, n := range c.blocks {
			kept[peer] = HeldBlocks{Blocks: n, Since: start}
		}
		if got := s.Due(p, start.Add(c.at), 100, kept); !slices.Equal(got, c.want) {
			t.Errorf("%d: due at %v: %q; want %q", i, c.at, got, c.want)
		}
	}
}

func TestPatienceIsChecked(t *testing.T) {
	for _, p := range []RebuildPolicy{{Share: -0.1}, {Share: 1.1}, {Grace: -1}, {Age: -1}} {
		if p.Validate() == nil {
			t.Errorf("%+v is taken", p)
		}
	}
	p := RebuildPolicy{}.WithDefaults()
	if err := p.Validate(); err != nil || p.Every() != 1250*time.Millisecond {
		t.Errorf("%v, every %v; want none, every 1.25s", err, p.Every())
	}
	if p.Grace = time.Millisecond; p.Every() != 10*time.Millisecond {
		t.Errorf("every %v; want 10ms", p.Every())
	}
}
