package auth

import (
	"crypto/sha256"
	"sync"
	"time"
)

// verdicts remembers which tokens were found valid. The key is the digest of the whole token, signature included, so
// that a token which differs in one bit is looked at afresh.
type verdicts struct {
	limit int

	mu   sync.Mutex
	keys *keySet // the set that the verdicts were found under; another set voids them
	byID map[[sha256.Size]byte]verdict
}

type verdict struct {
	who   Principal
	until time.Time
}

func newVerdicts(limit int) *verdicts {
	return &verdicts{limit: limit, byID: map[[sha256.Size]byte]verdict{}}
}

func verdictID(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }

func (v *verdicts) find(id [sha256.Size]byte, keys *keySet, now time.Time) (Principal, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	got, ok := v.byID[id]
	if !ok || v.keys != keys || !now.Before(got.until) {
		return Principal{}, false
	}
	return got.who, true
}

// add remembers a verdict. At the limit it drops what has ended, or else a few of the others, whichever come first.
func (v *verdicts) add(id [sha256.Size]byte, keys *keySet, who Principal, until time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.keys != keys {
		clear(v.byID)
		v.keys = keys
	}
	if len(v.byID) >= v.limit {
		now := time.Now()
		looked, room := 0, len(v.byID)-v.limit+1
		for old, got := range v.byID {
			if looked++; looked > 64 && room <= 0 {
				break
			}
			if room > 0 || !now.Before(got.until) {
				delete(v.byID, old)
				room--
			}
		}
	}
	v.byID[id] = verdict{who: who, until: until}
}
