package router

import (
	"cmp"
	"hash/maphash"
	"slices"
)

const (
	fewKeys  = 16      // up to so many keys of one object are compared with each other as they come
	manyKeys = 1 << 20 // more keys in one body are refused: each costs 16 bytes while its object is open
)

// scanner reads JSON without building anything: it checks and walks. It accepts RFC 8259 and nothing more, with
// strings in UTF-8. Its time is linear in the bytes, but for objects of many keys, whose hashes are sorted.
// Two keys count as equal if their hashes are: a body of a million keys is refused wrongly once in 10^7 times.
type scanner struct {
	b        []byte
	i        int
	maxDepth int
	unique   bool // refuse two equal keys in one object
	why      string
	at       int
	again    bool // why is about a key that came twice

	seed    maphash.Seed
	total   int
	keys    []keyHash // of all open objects, a stack
	scratch []byte    // the last key that had escapes, decoded
}

type keyHash struct {
	sum uint64
	at  int
}

// members walks one object: set up by object, moved by member.
type members struct {
	n     int    // members begun
	base  int    // where this object's keys begin in scanner.keys
	comma int    // where the comma before this member is; -1 before the first
	start int    // where this member's key begins
	val   int    // where its value begins
	key   []byte // its key, decoded; valid until the next key is read
}

// fail notes the first mistake. It returns false, so that callers can return it.
func (s *scanner) fail(why string) bool {
	if s.why == "" {
		s.why, s.at = why, s.i
	}
	s.i = len(s.b)
	return false
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\n', '\r', '\t':
			s.i++
		default:
			return
		}
	}
}

// peek is the byte at the cursor, 0 at the end; NUL is no JSON, so the two need no telling apart.
func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

// end checks that nothing but white space follows.
func (s *scanner) end() bool {
	if s.why != "" {
		return false
	}
	s.space()
	if s.i < len(s.b) {
		return s.fail("trailing bytes")
	}
	return true
}

// object reads an opening brace; depth is the object's own, 1 for the outermost.
func (s *scanner) object(depth int) (members, bool) {
	if s.peek() != '{' {
		return members{}, s.fail("want an object")
	}
	if depth > s.maxDepth {
		return members{}, s.fail("nested too deeply")
	}
	s.i++
	if s.unique && s.keys == nil {
		s.keys, s.seed = make([]keyHash, 0, fewKeys), maphash.MakeSeed()
	}
	return members{base: len(s.keys), comma: -1}, true
}

// member moves to the next member's value. It reports false behind the closing brace, and after a mistake.
func (s *scanner) member(m *members) bool {
	s.space()
	switch c := s.peek(); {
	case c == '}':
		s.i++
		return s.closeObject(m)
	case m.n == 0:
	case c == ',':
		m.comma = s.i
		s.i++
		s.space()
	default:
		return s.fail("want a comma or a closing brace")
	}
	m.start = s.i
	raw, escaped, ok := s.str()
	if !ok {
		return false
	}
	m.key = raw
	if escaped {
		s.scratch = unescape(s.scratch[:0], raw)
		m.key = s.scratch
	}
	m.n++
	if s.unique && !s.note(m) {
		return false
	}
	s.space()
	if s.peek() != ':' {
		return s.fail("want a colon")
	}
	s.i++
	s.space()
	m.val = s.i
	return true
}

// note remembers a key and, in a small object, compares it with those before it.
func (s *scanner) note(m *members) bool {
	if s.total++; s.total > manyKeys {
		return s.fail("too many keys")
	}
	k := keyHash{maphash.Bytes(s.seed, m.key), m.start}
	if m.n <= fewKeys {
		for _, o := range s.keys[m.base:] {
			if o.sum == k.sum {
				return s.twice(k.at)
			}
		}
	}
	s.keys = append(s.keys, k)
	return true
}

// closeObject drops the object's keys, and compares them if they were too many to compare as they came. It returns
// false always: there is no next member.
func (s *scanner) closeObject(m *members) bool {
	if m.n > fewKeys && s.unique {
		own := s.keys[m.base:]
		slices.SortFunc(own, func(a, b keyHash) int { return cmp.Or(cmp.Compare(a.sum, b.sum), cmp.Compare(a.at, b.at)) })
		for i := 1; i < len(own); i++ {
			if own[i].sum == own[i-1].sum {
				return s.twice(own[i].at)
			}
		}
	}
	if s.unique {
		s.keys = s.keys[:m.base]
	}
	return false
}

func (s *scanner) twice(at int) bool {
	s.i, s.again = at, true
	return s.fail("the same key twice in one object")
}

// commaAfter is where the comma behind the value just read is, -1 if it was the last.
func (s *scanner) commaAfter() int {
	s.space()
	if s.peek() == ',' {
		return s.i
	}
	return -1
}

// value walks over one value at the cursor; depth is that of what holds it.
func (s *scanner) value(depth int) bool {
	switch c := s.peek(); c {
	case '"':
		_, _, ok := s.str()
		return ok
	case '{':
		m, ok := s.object(depth + 1)
		if !ok {
			return false
		}
		for s.member(&m) {
			if !s.value(depth + 1) {
				return false
			}
		}
		return s.why == ""
	case '[':
		n := 0
		if !s.array(depth + 1) {
			return false
		}
		for s.element(&n) {
			if !s.value(depth + 1) {
				return false
			}
		}
		return s.why == ""
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	default:
		return s.number()
	}
}

// array reads an opening bracket; depth is the array's own.
func (s *scanner) array(depth int) bool {
	if s.peek() != '[' {
		return s.fail("want an array")
	}
	if depth > s.maxDepth {
		return s.fail("nested too deeply")
	}
	s.i++
	return true
}

// element moves to the next element; n counts those begun. It reports false behind the closing bracket, and after
// a mistake.
func (s *scanner) element(n *int) bool {
	s.space()
	switch c := s.peek(); {
	case s.why != "":
		return false
	case c == ']':
		s.i++
		return false
	case *n == 0:
	case c == ',':
		s.i++
		s.space()
	default:
		return s.fail("want a comma or a closing bracket")
	}
	*n++
	return true
}

func (s *scanner) word(w string) bool {
	if len(s.b)-s.i < len(w) || string(s.b[s.i:s.i+len(w)]) != w {
		return s.fail("not a value")
	}
	s.i += len(w)
	return true
}

func (s *scanner) digits() bool {
	from := s.i
	for s.i < len(s.b) && s.b[s.i]-'0' <= 9 {
		s.i++
	}
	return s.i > from
}

func (s *scanner) number() bool {
	if s.peek() == '-' {
		s.i++
	}
	if s.peek() == '0' {
		s.i++
	} else if !s.digits() {
		return s.fail("not a value")
	}
	if s.peek() == '.' {
		s.i++
		if !s.digits() {
			return s.fail("not a number")
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.i++
		if c := s.peek(); c == '+' || c == '-' {
			s.i++
		}
		if !s.digits() {
			return s.fail("not a number")
		}
	}
	return true
}

// integer reads a value that has to be a number without fraction and exponent, of at most 18 digits. It reports false without
// moving if there is another value, and notes no mistake then.
func (s *scanner) integer() (int, bool) {
	from := s.i
	if c := s.peek(); c != '-' && c-'0' > 9 || !s.number() {
		return 0, false
	}
	text, neg := s.b[from:s.i], false
	if text[0] == '-' {
		text, neg = text[1:], true
	}
	n := 0
	for _, c := range text {
		if c-'0' > 9 || len(text) > 18 {
			s.i = from
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	if neg {
		n = -n
	}
	return n, true
}
