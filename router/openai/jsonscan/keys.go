package jsonscan

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
func (s *Scanner) key(m *Members) bool {
	if b := s.Bytes[s.Pos:]; len(b) > 17 && b[0] == '"' {
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
			m.Key, m.Sum = b[:n], x^uint64(n)<<56
			s.Pos += n + 2
			return true
		}
	}
	raw, escaped, ok := s.Str()
	if escaped {
		s.scratch = Unescape(s.scratch[:0], raw)
		raw = s.scratch
	}
	m.Key, m.Sum = raw, KeySum(raw)
	return ok
}

// scatter is a multiplier: the high bits of its product with a sum depend on all bits of the sum.
const scatter = 0x9e3779b97f4a7c15

// KeySum is of the first eight bytes of a key and its length.
func KeySum(key []byte) (sum uint64) {
	for i, c := range key[:min(8, len(key))] {
		sum |= uint64(c) << (8 * i)
	}
	return sum ^ uint64(len(key))<<56
}

// note remembers a key and, in a small object, compares it with those before it.
func (s *Scanner) note(m *Members) bool {
	if s.total++; s.total > manyKeys {
		return s.Fail("too many keys")
	}
	bit := uint64(1) << (m.Sum * scatter >> 58)
	if m.seen&bit != 0 && m.Count <= fewKeys { // else none of them can be the same
		for _, o := range s.keys[m.base:] {
			if o.sum == m.Sum && bytes.Equal(s.keyAt(o.at), m.Key) {
				return s.twice(m.KeyStart)
			}
		}
	}
	m.seen |= bit
	if s.keys == nil {
		s.keys = make([]keyPlace, 0, fewKeys)
	}
	s.keys = append(s.keys, keyPlace{m.Sum, m.KeyStart})
	return true
}

// keyAt reads again the key that lies there. It is valid until the next call.
func (s *Scanner) keyAt(at int) []byte {
	again := Scanner{Bytes: s.Bytes, Pos: at}
	key, escaped, _ := again.Str()
	if escaped {
		s.second = Unescape(s.second[:0], key)
		key = s.second
	}
	return key
}

// closeObject drops the object's keys, and compares them if they were too many to compare as they came. It returns
// false always: there is no next member.
func (s *Scanner) closeObject(m *Members) bool {
	if !s.Unique {
		return false
	}
	if m.Count > fewKeys {
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

func (s *Scanner) twice(at int) bool {
	s.Pos, s.Repeated = at, true
	return s.Fail("the same key twice in one object")
}
