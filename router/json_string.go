package router

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// str reads a string at the cursor and returns what is between its quotes.
func (s *scanner) str() (raw []byte, escaped, ok bool) {
	if s.peek() != '"' {
		return nil, false, s.fail("want a string")
	}
	from := s.i + 1
	rest, escaped, why := stringEnd(s.b[from:])
	end := len(s.b) - len(rest)
	if why != "" {
		s.i = end
		return nil, false, s.fail(why)
	}
	s.i = end + 1
	return s.b[from:end], escaped, true
}

// stringEnd walks over a string from behind its opening quote, and returns b from the closing one on. If why is not "" it is what is wrong
// with the string there. It has a function of its own, and what is left in place of an index, because it is most of what a prompt
// costs: the compiler then keeps all it needs in registers and checks no bounds.
func stringEnd(b []byte) (rest []byte, escaped bool, why string) {
	const highs = 0x8080808080808080
	for {
		// Eight bytes at a time up to the first quote, backslash, control character or byte that is not ASCII, and thirty-two once there
		// was nothing for a while: plain text of 220 KB takes half the time, and text full of escapes no more than without.
		for plain := 0; len(b) > 8; plain++ {
			if stop := stops(binary.LittleEndian.Uint64(b)) & highs; stop != 0 {
				b = b[bits.TrailingZeros64(stop)/8&7:]
				break
			}
			b = b[8:]
			for plain == 4 && len(b) > 32 {
				x0, x1 := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
				x2, x3 := binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
				if (stops(x0)|stops(x1)|stops(x2)|stops(x3))&highs != 0 {
					break
				}
				b = b[32:]
			}
		}
		if len(b) == 0 {
			return b, escaped, "the string does not end"
		}
		switch c := b[0]; {
		case c >= utf8.RuneSelf:
			n := wideLen(b)
			if n == 0 {
				return b, escaped, "not UTF-8"
			}
			b = b[n:]
		case c == '\\':
			escaped = true
			n := escapeLen(b)
			if n == 0 {
				return b, escaped, "not an escape"
			}
			b = b[n:]
		case c == '"':
			return b, escaped, ""
		case c < ' ':
			return b, escaped, "a control character in a string"
		default: // the last bytes, no more than eight
			b = b[1:]
		}
	}
}

// stops has the high bit of the first byte of x that ends a plain stretch of a string: a quote, a backslash, a control character or
// a byte that is not ASCII, which has it by itself. Above it others may be set that do not. With bit 1 flipped a quote is 0x20, next to
// the control characters, so that one difference borrows for both.
func stops(x uint64) uint64 {
	const ones = 0x0101010101010101
	return (x ^ 0x02*ones - 0x21*ones) | (x ^ '\\'*ones - ones) | x
}

// wideLen is the length of the characters at the start of b that are not ASCII, 0 if the first that is not UTF-8 is b's first.
func wideLen(b []byte) int {
	all := len(b)
	for len(b) > 4 {
		// Most have two or three bytes, and of those most need no look at how they go on: all but E0, behind which they may be too
		// long, and ED, behind which they may be half of a pair.
		x := binary.LittleEndian.Uint32(b)
		if x&0xc0c0f0 == 0x8080e0 && x&0xf != 0 && x&0xf != 0xd {
			b = b[3:]
		} else if x&0xc0e0 == 0x80c0 && x&0x1e != 0 {
			b = b[2:]
		} else {
			break
		}
	}
	if n := all - len(b); n > 0 {
		return n
	}
	r, n := utf8.DecodeRune(b)
	if r == utf8.RuneError && n == 1 {
		return 0
	}
	return n
}

// escapeLen is the length of the escapes at the start of b, 0 if there is none.
func escapeLen(b []byte) int {
	all := len(b)
	for len(b) >= 2 && b[0] == '\\' {
		switch c := b[1]; {
		case isEscape[c]:
			b = b[2:]
		case c == 'u' && len(b) >= 6 && hexValue[b[2]]|hexValue[b[3]]|hexValue[b[4]]|hexValue[b[5]] >= 0:
			b = b[6:]
		default:
			return all - len(b)
		}
	}
	return all - len(b)
}

// isEscape are the characters that a backslash may stand before, but for u.
var isEscape = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	r := rune(hexValue[b[0]])<<12 | rune(hexValue[b[1]])<<8 | rune(hexValue[b[2]])<<4 | rune(hexValue[b[3]])
	return r, r >= 0
}

// hexValue is what a hexadecimal digit of either case stands for, -1 of other bytes.
var hexValue = func() (of [256]int8) {
	for c := range of {
		of[c] = -1
	}
	for d, c := range []byte("0123456789abcdef") {
		of[c] = int8(d)
	}
	for d, c := range []byte("ABCDEF") {
		of[c] = int8(10 + d)
	}
	return of
}()

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
	v := hexValue[c]
	return byte(v), v >= 0
}
