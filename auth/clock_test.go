package auth

import (
	"testing"
	"testing/synctest"
	"time"

	"pdrouter/auth/internal/keytest"
)

// stepped is a reading of the clocks after the wall clock was set by some way and the other ran on.
func stepped(by time.Duration) moment {
	at := present()
	at.wall = at.wall.Add(by)
	return at
}

// A wall clock that is set ends those tokens that it says are over, and nothing else: neither the other verdicts, nor
// the keys of an issuer that is asked from time to time.
func TestFault69ClockIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := keytest.New(t, "k1")
		source := newSource(time.Now().Add(10*time.Minute), key)
		v, err := NewVerifier(VerifierConfig{Issuer: "issuer", Audience: ClientAudience}, source)
		if err != nil {
			t.Fatal(err)
		}
		short, long := mint(t, key, Grant{TTL: 10 * time.Minute}), mint(t, key, Grant{TTL: 3 * time.Hour})
		for _, token := range []string{short, long} {
			if _, err := v.authenticate(token, present()); err != nil {
				t.Fatal(err)
			}
		}
		accepted := func(when, token string, by time.Duration, want bool) {
			t.Helper()
			if _, err := v.authenticate(token, stepped(by)); (err == nil) != want {
				t.Errorf("%s: got %v; want accepted: %t", when, err, want)
			}
		}
		accepted("an hour ahead, a token that ends later", long, time.Hour, true)
		accepted("an hour ahead, a token that is over by then", short, time.Hour, false)
		accepted("set right again", short, 0, true)
		accepted("an hour behind, a token that was seen", long, -time.Hour, true)
		accepted("an hour behind, the shorter one", short, -time.Hour, true)

		time.Sleep(10 * time.Minute) // the issuer's keys are too old, whatever the wall clock says
		accepted("stale keys, an hour behind", long, -time.Hour, false)
		accepted("stale keys", long, 0, false)
	})
}
