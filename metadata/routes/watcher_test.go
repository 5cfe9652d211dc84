package routes

import (
	"strings"
	"testing"

	"pdrouter/metadata"
)

func TestWatcherJoinsEventsOfOneEngine(t *testing.T) {
	for _, c := range []struct {
		name string
		told []string // engine@what it was; "" is «sync»
		want string
		slow int
	}{
		{"nothing", nil, "", 0},
		{"in order", []string{"b@1", "a@1"}, "b@1 a@1", 0},
		{"what it was at first stays", []string{"a@1", "a@2"}, "a@1", 0},
		{"too many", []string{"a@1", "b@1", "c@1"}, "sync", 1},
		{"after a sync", []string{"a@1", "", "b@1"}, "sync b@1", 0},
	} {
		w := newWatcher("somebody", 2)
		slow := 0
		for _, told := range c.told {
			engine, generation, _ := strings.Cut(told, "@")
			switch {
			case told == "":
				w.again()
			case w.tell(engine, seen{inc: metadata.Incarnation{Engine: engine, Generation: uint64(generation[0] - '0')}}):
				slow++
			}
		}
		if slow != c.slow {
			t.Errorf("%s: the reader was too slow %d times; want %d", c.name, slow, c.slow)
		}
		var got []string
		all, order, before := w.take()
		if all {
			got = append(got, "sync")
		}
		for _, engine := range order {
			got = append(got, before[engine].inc.ID())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %v; want %s", c.name, got, c.want)
		}
		if all, order, _ := w.take(); all || len(order) > 0 {
			t.Errorf("%s: told twice: %v %v", c.name, all, order)
		}
	}
}
