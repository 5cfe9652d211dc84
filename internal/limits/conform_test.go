package limits

import (
	"testing"
	"time"
)

// conform holds an exchange to what the limiter relies on. step sets its clock.
func conform(t *testing.T, x exchange, step func(time.Duration)) {
	ask := func(t *testing.T, r report) report {
		t.Helper()
		one := []report{r}
		if err := x.swap(t.Context(), one); err != nil || !one[0].known {
			t.Fatalf("swap: %v, known %t", err, one[0].known)
		}
		return one[0]
	}
	const slack = 10 * time.Second // what may be refilled while the test runs
	near := func(t *testing.T, what string, got, want time.Duration) {
		t.Helper()
		if got > want || got < want-slack || got < 0 {
			t.Errorf("%s: got %v; want %v", what, got, want)
		}
	}
	pair := func(r, k int) [buckets]time.Duration {
		return [buckets]time.Duration{time.Duration(r) * time.Second, time.Duration(k) * time.Second}
	}

	t.Run("sums", func(t *testing.T) {
		a := ask(t, report{key: "sums", from: "a", sum: pair(20, 200), seen: pair(20, 200), mine: load{3, time.Second}})
		near(t, "the first's requests", a.owed[requests], 20*time.Second)
		near(t, "the first's tokens", a.owed[tokens], 200*time.Second)
		b := ask(t, report{key: "sums", from: "b", sum: pair(30, 300), seen: pair(30, 300), mine: load{inFlight: 2}})
		near(t, "requests of both", b.owed[requests], 50*time.Second)
		near(t, "tokens of both", b.owed[tokens], 500*time.Second)
		if (b.others != load{3, time.Second} || a.others != load{}) {
			t.Errorf("got %v and %v at others; want none, and 3", a.others, b.others)
		}
		near(t, "told twice", ask(t, report{key: "sums", from: "b", sum: pair(30, 300), mine: load{inFlight: 2}}).owed[tokens], 500*time.Second)
		near(t, "given back", ask(t, report{key: "sums", from: "b", sum: pair(30, 100), taken: pair(30, 300)}).owed[tokens], 300*time.Second)
		if other := ask(t, report{key: "another", from: "a"}); other.owed != pair(0, 0) {
			t.Errorf("another tenant owes %v", other.owed)
		}
	})
	t.Run("large sums are exact", func(t *testing.T) {
		const large = 60 * 24 * time.Hour
		ask(t, report{key: "large", from: "a", sum: [buckets]time.Duration{0, large}})
		got := ask(t, report{key: "large", from: "a", sum: [buckets]time.Duration{0, large + time.Hour + 1}})
		near(t, "tokens", got.owed[tokens], time.Hour+1)
	})
	t.Run("an outage", func(t *testing.T) {
		ask(t, report{key: "outage", from: "a", sum: pair(10, 100), seen: pair(10, 100)})
		got := ask(t, report{key: "outage", from: "b", sum: pair(1000, 9000), seen: pair(55, 90), lost: true})
		near(t, "requests", got.owed[requests], 55*time.Second)
		near(t, "tokens", got.owed[tokens], 100*time.Second)
		near(t, "counted on", ask(t, report{key: "outage", from: "b", sum: pair(1002, 9000), seen: pair(57, 90)}).owed[requests], 57*time.Second)
	})
	t.Run("nothing is left of it", func(t *testing.T) {
		near(t, "seen", ask(t, report{key: "wiped", from: "a", sum: pair(5000, 0), taken: pair(4990, 0), seen: pair(40, 0)}).owed[requests], 40*time.Second)
		near(t, "not taken", ask(t, report{key: "wiped", from: "b", sum: pair(4000, 0), taken: pair(3999, 0), seen: pair(40, 0)}).owed[requests], 41*time.Second)
	})
	t.Run("never below nothing", func(t *testing.T) {
		ask(t, report{key: "below", from: "a", sum: pair(0, 10), seen: pair(0, 10)})
		near(t, "tokens", ask(t, report{key: "below", from: "a", sum: pair(0, -500), taken: pair(0, 10)}).owed[tokens], 0)
	})
	t.Run("the dead are forgotten, and time refills", func(t *testing.T) {
		ask(t, report{key: "dead", from: "a", mine: load{inFlight: 7}, sum: pair(60, 0), seen: pair(60, 0)})
		if got := ask(t, report{key: "dead", from: "b"}).others.inFlight; got != 7 {
			t.Errorf("got %d others; want 7", got)
		}
		step(keep + 30*time.Second)
		got := ask(t, report{key: "dead", from: "b"})
		near(t, "requests", got.owed[requests], 60*time.Second-keep-30*time.Second)
		if (got.others != load{}) {
			t.Errorf("got %v at others; want none", got.others)
		}
	})
	t.Run("its clock is set back", func(t *testing.T) {
		all := pair(60, 60)
		ask(t, report{key: "back", from: "a", mine: load{inFlight: 7}, sum: all, seen: all})
		ask(t, report{key: "back", from: "b", mine: load{inFlight: 1}, sum: all})
		step(-time.Hour)
		got := ask(t, report{key: "back", from: "b", mine: load{inFlight: 1}, sum: all, taken: all})
		near(t, "nobody is charged twice", got.owed[requests], 120*time.Second)
		if (got.others != load{}) { // a may have died: it would be believed for an hour
			t.Errorf("got %v at others; want none until they are heard of", got.others)
		}
		near(t, "nor is who was forgotten", ask(t, report{key: "back", from: "a", mine: load{inFlight: 7}, sum: all, taken: all}).owed[requests], 120*time.Second)
		if got := ask(t, report{key: "back", from: "b", mine: load{inFlight: 1}, sum: all, taken: all}).others.inFlight; got != 7 {
			t.Errorf("got %d others; want 7, as they were heard of", got)
		}
		step(30 * time.Second)
		near(t, "its time goes on", ask(t, report{key: "back", from: "b", sum: all, taken: all}).owed[requests], 90*time.Second)
	})
	t.Run("its clock is set forward", func(t *testing.T) {
		all := pair(60, 60)
		ask(t, report{key: "forward", from: "a", mine: load{inFlight: 7}, sum: all, seen: all})
		step(time.Hour)
		near(t, "refilled once", ask(t, report{key: "forward", from: "b"}).owed[requests], 0)
		near(t, "nobody is charged twice", ask(t, report{key: "forward", from: "a", sum: all, taken: all}).owed[requests], 0)
	})
}
