package router

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// str reads a string at the cursor and returns what is between its quotes.
func (s *scanner) str() (raw []byte, escaped, ok bool) {
	const highs = 0x8080808080808080
	if s.peek() != '"' {
		return nil, false, s.fail("want a string")
	}
	b, i := s.b, s.i+1
	from := i
	high := uint64(0)
	for {
		// Thirty-two bytes at a time as long as nothing is in them (eight at a time took twice as long over 220 KB), then eight up to
		// the first quote, backslash or control character.
		for i+32 <= len(b) {
			p := b[i : i+32]
			x0, x1 := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
			x2, x3 := binary.LittleEndian.Uint64(p[16:]), binary.LittleEndian.Uint64(p[24:])
			if (stops(x0)|stops(x1)|stops(x2)|stops(x3))&highs != 0 {
				break
			}
			high |= x0 | x1 | x2 | x3
			i += 32
		}
		for i+8 <= len(b) {
			x := binary.LittleEndian.Uint64(b[i:])
			high |= x
			if stop := stops(x) & highs; stop != 0 {
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

// stops has the high bit of the first byte of x that ends a plain stretch of a string: a quote, a backslash or a control
// character. Above it others may be set that do not. With bit 1 flipped a quote is 0x20, next to the control characters, so that
// one difference borrows for both.
func stops(x uint64) uint64 {
	const ones = 0x0101010101010101
	return ((x ^ 0x02*ones - 0x21*ones) | (x ^ '\\'*ones - ones)) &^ x
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
