package router

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"slices"
)

const (
	fewKeys  = 16      // up to so many keys of one object are compared with each other as they come
	manyKeys = 1 << 20 // more keys in one body are refused: each costs 16 bytes while its object is open
)

// keyPlace is where a key lies. Keys whose sums differ do.
type keyPlace struct {
	sum uint64
	at  int
}

// key reads a member's key. Most are plain and shorter than sixteen bytes, and a body has more of them than of anything else: they
// are read where they lie.
func (s *scanner) key(m *members) bool {
	if b := s.b[s.i:]; len(b) > 17 && b[0] == '"' {
		x, n := binary.LittleEndian.Uint64(b[1:]), 0
		stop := stops(x) & highs
		if stop == 0 {
			n, stop = 8, stops(binary.LittleEndian.Uint64(b[9:]))&highs
		}
		n += bits.TrailingZeros64(stop) / 8 & 7
		if b = b[1:]; stop != 0 && b[n] == '"' {
			if n < 8 {
				x &= 1<<(8*n) - 1
			}
			m.key, m.sum = b[:n], x^uint64(n)<<56
			s.i += n + 2
			return true
		}
	}
	raw, escaped, ok := s.str()
	if escaped {
		s.scratch = unescape(s.scratch[:0], raw)
		raw = s.scratch
	}
	m.key, m.sum = raw, sumOf(raw)
	return ok
}

// scatter has the high bits of a product with a sum depend on all bits of the sum.
const scatter = 0x9e3779b97f4a7c15

// sumOf is of the first eight bytes of a key and its length.
func sumOf(key []byte) (sum uint64) {
	for i, c := range key[:min(8, len(key))] {
		sum |= uint64(c) << (8 * i)
	}
	return sum ^ uint64(len(key))<<56
}

// note remembers a key and, in a small object, compares it with those before it.
func (s *scanner) note(m *members) bool {
	if s.total++; s.total > manyKeys {
		return s.fail("too many keys")
	}
	bit := uint64(1) << (m.sum * scatter >> 58)
	if m.seen&bit != 0 && m.n <= fewKeys { // else none of them can be the same
		for _, o := range s.keys[m.base:] {
			if o.sum == m.sum && bytes.Equal(s.keyAt(o.at), m.key) {
				return s.twice(m.start)
			}
		}
	}
	m.seen |= bit
	s.keys = append(s.keys, keyPlace{m.sum, m.start})
	return true
}

// keyAt reads again the key that lies there. It is valid until the next call.
func (s *scanner) keyAt(at int) []byte {
	again := scanner{b: s.b, i: at}
	key, escaped, _ := again.str()
	if escaped {
		s.second = unescape(s.second[:0], key)
		key = s.second
	}
	return key
}

// closeObject drops the object's keys, and compares them if they were too many to compare as they came. It returns
// false always: there is no next member.
func (s *scanner) closeObject(m *members) bool {
	if !s.unique {
		return false
	}
	if m.n > fewKeys {
		own, seed := s.keys[m.base:], maphash.MakeSeed()
		for i := range own {
			own[i].sum = maphash.Bytes(seed, s.keyAt(own[i].at))
		}
		slices.SortFunc(own, func(a, b keyPlace) int { return cmp.Or(cmp.Compare(a.sum, b.sum), cmp.Compare(a.at, b.at)) })
		for i := 1; i < len(own); i++ {
			if own[i].sum == own[i-1].sum {
				return s.twice(own[i].at)
			}
		}
	}
	s.keys = s.keys[:m.base]
	return false
}

func (s *scanner) twice(at int) bool {
	s.i, s.again = at, true
	return s.fail("the same key twice in one object")
}
