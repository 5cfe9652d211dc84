package router

// scanner reads JSON without building anything: it checks and walks. It accepts RFC 8259 and nothing more, with
// strings in UTF-8. Its time is linear in the bytes, but for objects of many keys, whose hashes are sorted.
// Two of many keys count as equal if their hashes are: a body of a million keys is refused wrongly once in 10^7 times.
type scanner struct {
	b        []byte
	i        int
	maxDepth int
	unique   bool // refuse two equal keys in one object
	why      string
	at       int
	again    bool // why is about a key that came twice

	total   int
	keys    []keyPlace // of all open objects, a stack
	scratch []byte     // the last key that had escapes, decoded
	second  []byte     // the same of a key that is compared with it
}

// members walks one object: set up by object, moved by member.
type members struct {
	n     int    // members begun
	base  int    // where this object's keys begin in scanner.keys
	comma int    // where the comma before this member is; -1 before the first
	start int    // where this member's key begins
	val   int    // where its value begins
	key   []byte // its key, decoded; valid until the next key is read
	sum   uint64 // of the key: keys whose sums differ do
	seen  uint64 // a bit for the sum of each key, of which several may have the same
}

// fail notes the first mistake. It returns false, so that callers can return it.
func (s *scanner) fail(why string) bool {
	if s.why == "" {
		s.why, s.at = why, s.i
	}
	s.i = len(s.b)
	return false
}

// space moves over white space and returns the byte at the cursor, 0 at the end.
func (s *scanner) space() byte {
	for ; s.i < len(s.b); s.i++ {
		if c := s.b[s.i]; c > ' ' || c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			return c
		}
	}
	return 0
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
	if s.space(); s.i < len(s.b) {
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
	return members{base: len(s.keys), comma: -1}, true
}

// member moves to the next member's value. It reports false behind the closing brace, and after a mistake.
func (s *scanner) member(m *members) bool {
	switch c := s.space(); {
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
	if !s.key(m) {
		return false
	}
	m.n++
	if s.unique && !s.note(m) {
		return false
	}
	if s.space() != ':' {
		return s.fail("want a colon")
	}
	s.i++
	s.space()
	m.val = s.i
	return true
}

// commaAfter is where the comma behind the value just read is, -1 if it was the last.
func (s *scanner) commaAfter() int {
	if s.space() == ',' {
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
	switch c := s.space(); {
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

// digitsEnd is where the digits in b from i on end.
func digitsEnd(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

func (s *scanner) number() bool {
	b, i := s.b, s.i
	if i < len(b) && b[i] == '-' {
		i++
	}
	from := i
	if i < len(b) && b[i] == '0' {
		i++
	} else {
		i = digitsEnd(b, i)
	}
	why := "not a value"
	if i > from && i < len(b) && b[i] == '.' {
		i, from, why = digitsEnd(b, i+1), i+1, "not a number"
	}
	if i > from && i < len(b) && b[i]|0x20 == 'e' {
		if from = i + 1; from < len(b) && (b[from] == '+' || b[from] == '-') {
			from++
		}
		i, why = digitsEnd(b, from), "not a number"
	}
	s.i = i
	return i > from || s.fail(why)
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
