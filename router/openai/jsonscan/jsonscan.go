// Package jsonscan reads JSON in one pass and builds nothing: it checks, and it tells where values begin and end. It does not
// know what a document means. Its callers are the packages that read and edit bodies and answers of the OpenAI API.
package jsonscan

// Scanner reads JSON without building anything: it checks and walks. It accepts RFC 8259 and nothing more, with
// strings in UTF-8. Its time is linear in the bytes, but for objects of many keys, whose hashes are sorted.
// Two of many keys count as equal if their hashes are: a body of a million keys is refused wrongly once in 10^7 times.
type Scanner struct {
	Bytes    []byte // the text
	Pos      int    // the cursor, an offset in it
	MaxDepth int    // of nested objects and arrays
	Unique   bool   // refuse two equal keys in one object
	Why      string // the first mistake; "" while there is none
	At       int    // its offset
	Repeated bool   // it is a key that came twice

	total   int
	keys    []keyPlace // of all open objects, a stack
	scratch []byte     // the last key that had escapes, decoded
	second  []byte     // the same of a key that is compared with it
}

// Members walks one object: set up by object, moved by member.
type Members struct {
	Count      int    // members begun
	base       int    // where this object's keys begin in Scanner.keys
	Comma      int    // where the comma before this member is; -1 before the first
	KeyStart   int    // where this member's key begins
	ValueStart int    // where its value begins
	Key        []byte // its key, decoded; valid until the next key is read
	Sum        uint64 // of the key: keys whose sums differ do
	seen       uint64 // a bit for the sum of each key; several keys may have the same
}

// Fail notes the first mistake. It returns false, so that callers can return it.
func (s *Scanner) Fail(why string) bool {
	if s.Why == "" {
		s.Why, s.At = why, s.Pos
	}
	s.Pos = len(s.Bytes)
	return false
}

// Space moves over white space and returns the byte at the cursor, 0 at the end.
func (s *Scanner) Space() byte {
	for ; s.Pos < len(s.Bytes); s.Pos++ {
		if c := s.Bytes[s.Pos]; c > ' ' || c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			return c
		}
	}
	return 0
}

// Peek is the byte at the cursor, 0 at the end; NUL is no JSON, so the two need no telling apart.
func (s *Scanner) Peek() byte {
	if s.Pos < len(s.Bytes) {
		return s.Bytes[s.Pos]
	}
	return 0
}

// End checks that nothing but white space follows.
func (s *Scanner) End() bool {
	if s.Why != "" {
		return false
	}
	if s.Space(); s.Pos < len(s.Bytes) {
		return s.Fail("trailing bytes")
	}
	return true
}

// Object reads an opening brace; depth is the object's own, 1 for the outermost.
func (s *Scanner) Object(depth int) (Members, bool) {
	if s.Peek() != '{' {
		return Members{}, s.Fail("want an object")
	}
	if depth > s.MaxDepth {
		return Members{}, s.Fail("nested too deeply")
	}
	s.Pos++
	return Members{base: len(s.keys), Comma: -1}, true
}

// Member moves to the next member's value. It reports false after the closing brace, and after a mistake.
func (s *Scanner) Member(m *Members) bool {
	switch c := s.Space(); {
	case c == '}':
		s.Pos++
		return s.closeObject(m)
	case m.Count == 0:
	case c == ',':
		m.Comma = s.Pos
		s.Pos++
		s.Space()
	default:
		return s.Fail("want a comma or a closing brace")
	}
	m.KeyStart = s.Pos
	if !s.key(m) {
		return false
	}
	m.Count++
	if s.Unique && !s.note(m) {
		return false
	}
	if s.Space() != ':' {
		return s.Fail("want a colon")
	}
	s.Pos++
	s.Space()
	m.ValueStart = s.Pos
	return true
}

// CommaAfter is where the comma after the value just read is, -1 if it was the last.
func (s *Scanner) CommaAfter() int {
	if s.Space() == ',' {
		return s.Pos
	}
	return -1
}

// Value walks over one value at the cursor; depth is that of what holds it.
func (s *Scanner) Value(depth int) bool {
	switch c := s.Peek(); c {
	case '"':
		_, _, ok := s.Str()
		return ok
	case '{':
		m, ok := s.Object(depth + 1)
		if !ok {
			return false
		}
		for s.Member(&m) {
			if !s.Value(depth + 1) {
				return false
			}
		}
		return s.Why == ""
	case '[':
		n := 0
		if !s.Array(depth + 1) {
			return false
		}
		for s.Element(&n) {
			if !s.Value(depth + 1) {
				return false
			}
		}
		return s.Why == ""
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

// Array reads an opening bracket; depth is the array's own.
func (s *Scanner) Array(depth int) bool {
	if s.Peek() != '[' {
		return s.Fail("want an array")
	}
	if depth > s.MaxDepth {
		return s.Fail("nested too deeply")
	}
	s.Pos++
	return true
}

// Element moves to the next element; n counts those begun. It reports false after the closing bracket, and after
// a mistake.
func (s *Scanner) Element(n *int) bool {
	switch c := s.Space(); {
	case s.Why != "":
		return false
	case c == ']':
		s.Pos++
		return false
	case *n == 0:
	case c == ',':
		s.Pos++
		s.Space()
	default:
		return s.Fail("want a comma or a closing bracket")
	}
	*n++
	return true
}

func (s *Scanner) word(w string) bool {
	if len(s.Bytes)-s.Pos < len(w) || string(s.Bytes[s.Pos:s.Pos+len(w)]) != w {
		return s.Fail("not a value")
	}
	s.Pos += len(w)
	return true
}

// digitsEnd is where the digits in b from i on end.
func digitsEnd(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

func (s *Scanner) number() bool {
	b, i := s.Bytes, s.Pos
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
	s.Pos = i
	return i > from || s.Fail(why)
}

// Integer reads a value that has to be a number without fraction and exponent, of at most 18 digits. It reports false without
// moving if there is another value, and notes no mistake then.
func (s *Scanner) Integer() (int, bool) {
	from := s.Pos
	if c := s.Peek(); c != '-' && c-'0' > 9 || !s.number() {
		return 0, false
	}
	text, neg := s.Bytes[from:s.Pos], false
	if text[0] == '-' {
		text, neg = text[1:], true
	}
	n := 0
	for _, c := range text {
		if c-'0' > 9 || len(text) > 18 {
			s.Pos = from
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	if neg {
		n = -n
	}
	return n, true
}
