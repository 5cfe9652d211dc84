package auth

import (
	"crypto/sha512"
	"sync"
	"time"

	"pdrouter/auth/keys"
)

const (
	maxShards   = 64  // a power of two
	perShard    = 128 // verdicts, before another shard is of use
	lookedAt    = 64  // verdicts that one addition looks at, so that none takes long
	shardPadded = 64  // bytes between shards, so that cores do not share what they lock
)

// verdicts remembers which tokens were found valid. The key is the digest of the whole token, signature included, so
// that a token which differs in one bit is looked at afresh.
type verdicts struct {
	shards []verdictShard // as many as a power of two
}

// verdictShard is the verdicts of those tokens whose digests begin alike.
type verdictShard struct {
	limit int

	mu   sync.RWMutex
	byID map[[sha512.Size256]byte]verdict

	_ [shardPadded]byte
}

// verdict is what was found of one token.
type verdict struct {
	who    Principal
	until  time.Time // the token's own end, on the wall clock
	issuer *issuer
	keys   *keys.Set // that it was found under: another set voids it
}

func newVerdicts(limit int) *verdicts {
	n := 1
	for n < maxShards && limit/(2*n) >= perShard {
		n *= 2
	}
	v := &verdicts{shards: make([]verdictShard, n)}
	for i := range v.shards {
		v.shards[i].limit = limit / n
		v.shards[i].byID = map[[sha512.Size256]byte]verdict{}
	}
	return v
}

// verdictID is SHA-512/256, which a machine without instructions for either works out in half the time of SHA-256.
// The token goes through a buffer on the stack: making bytes of it would leave them to be collected.
func verdictID(token string) (id [sha512.Size256]byte) {
	var buf [512]byte
	h := sha512.New512_256()
	for len(token) > 0 {
		n := copy(buf[:], token)
		h.Write(buf[:n])
		token = token[n:]
	}
	h.Sum(id[:0])
	return id
}

func (v *verdicts) shard(id [sha512.Size256]byte) *verdictShard {
	return &v.shards[int(id[0])&(len(v.shards)-1)]
}

// find returns who bears a token that was found valid, and is still.
func (v *verdicts) find(id [sha512.Size256]byte, at moment) (Principal, bool) {
	s := v.shard(id)
	s.mu.RLock()
	got, ok := s.byID[id]
	s.mu.RUnlock()
	if !ok || !got.holds(at) {
		return Principal{}, false
	}
	return got.who, true
}

// holds reports whether the verdict is still what a fresh look would come to.
func (v *verdict) holds(at moment) bool {
	return at.wall.Before(v.until) && v.issuer.Keys.Current() == v.keys && !v.keys.Stale(at.mono)
}

// add remembers a verdict. At the limit it drops what no longer holds, or else a few of the others, whichever come first.
func (v *verdicts) add(id [sha512.Size256]byte, found verdict, at moment) {
	s := v.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byID) >= s.limit {
		looked, room := 0, len(s.byID)-s.limit+1
		for old, got := range s.byID {
			if looked++; looked > lookedAt && room <= 0 {
				break
			}
			if room > 0 || !got.holds(at) {
				delete(s.byID, old)
				room--
			}
		}
	}
	s.byID[id] = found
}

// len returns how many verdicts are remembered.
func (v *verdicts) len() int {
	n := 0
	for i := range v.shards {
		s := &v.shards[i]
		s.mu.RLock()
		n += len(s.byID)
		s.mu.RUnlock()
	}
	return n
}
