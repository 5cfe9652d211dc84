package memory

import "testing"

// TestSet: a range is held if every byte of it is, and no sum wraps around.
func TestSet(t *testing.T) {
	s, err := NewSet([]Region{{Base: 500, Length: 10}, {Base: 100, Length: 50}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		address, length uint64
		want            bool
	}{
		{100, 50, true}, {100, 51, false}, {149, 1, true}, {150, 0, true}, {150, 1, false}, {99, 1, false},
		{99, 60, false}, {500, 10, true}, {509, 2, false}, {505, ^uint64(0), false}, {^uint64(0), 1, false}, {0, 1, false},
	} {
		if got := s.Holds(c.address, c.length); got != c.want {
			t.Errorf("holds(%d, %d) is %v; want %v", c.address, c.length, got, c.want)
		}
	}
}
