package router

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// str reads a string at the cursor and returns what is between its quotes.
func (s *scanner) str() (raw []byte, escaped, ok bool) {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	if s.peek() != '"' {
		return nil, false, s.fail("want a string")
	}
	b, i := s.b, s.i+1
	from := i
	high := uint64(0)
	for {
		// Eight bytes at a time up to the first quote, backslash or control character: each of the three
		// differences borrows into a byte's high bit exactly there (above the first one it may lie).
		for i+8 <= len(b) {
			x := binary.LittleEndian.Uint64(b[i:])
			high |= x
			stop := (x - 0x20*ones) | ((x ^ '"'*ones) - ones) | ((x ^ '\\'*ones) - ones)
			if stop &= ^x & highs; stop != 0 {
				i += bits.TrailingZeros64(stop) / 8
				break
			}
			i += 8
		}
		if i >= len(b) {
			s.i = i
			return nil, false, s.fail("the string does not end")
		}
		switch c := b[i]; {
		case c == '"':
			raw = b[from:i]
			if high&highs != 0 && !utf8.Valid(raw) {
				return nil, false, s.fail("not UTF-8")
			}
			s.i = i + 1
			return raw, escaped, true
		case c == '\\':
			escaped = true
			n := escapeLen(b[i:])
			if n == 0 {
				s.i = i
				return nil, false, s.fail("not an escape")
			}
			i += n
		case c < 0x20:
			s.i = i
			return nil, false, s.fail("a control character in a string")
		default: // the last bytes of b, fewer than eight
			high |= uint64(c)
			i++
		}
	}
}

// escapeLen is the length of the escape at the start of b, 0 if it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex4(b[2:]); ok {
			return 6
		}
	}
	return 0
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	r := rune(0)
	for _, c := range b[:4] {
		d, ok := hexDigit(c)
		if !ok {
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

// unescape appends what the checked string raw stands for. A surrogate without its other half keeps its own three
// bytes, as it would have in WTF-8: two keys that differ stay different.
func unescape(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		raw = raw[i:]
		c := raw[1]
		if c != 'u' {
			if j := bytes.IndexByte([]byte("bfnrt"), c); j >= 0 {
				c = "\b\f\n\r\t"[j]
			}
			dst, raw = append(dst, c), raw[2:]
			continue
		}
		r, _ := hex4(raw[2:])
		raw = raw[6:]
		if r>>10 == 0xd800>>10 && len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
			if low, _ := hex4(raw[2:]); low>>10 == 0xdc00>>10 {
				r, raw = 0x10000+(r-0xd800)<<10+(low-0xdc00), raw[6:]
			}
		}
		if r>>11 == 0xd800>>11 {
			dst = append(dst, 0xe0|byte(r>>12), 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
			continue
		}
		dst = utf8.AppendRune(dst, r)
	}
}

// hexDigit returns the value of one hexadecimal digit of either case.
func hexDigit(c byte) (byte, bool) {
	switch {
	case c-'0' <= 9:
		return c - '0', true
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}
