package jsonscan

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// Str reads a string at the cursor and returns what is between its quotes.
func (s *Scanner) Str() (raw []byte, escaped, ok bool) {
	if s.Peek() != '"' {
		return nil, false, s.Fail("want a string")
	}
	from := s.Pos + 1
	rest, escaped, why := stringEnd(s.Bytes[from:])
	end := len(s.Bytes) - len(rest)
	if why != "" {
		s.Pos = end
		return nil, false, s.Fail(why)
	}
	s.Pos = end + 1
	return s.Bytes[from:end], escaped, true
}

// stringEnd walks over a string from after its opening quote, and returns b from the closing one on. If why is not "" it is what is wrong
// with the string there. It has a function of its own, and what is left in place of an index, because it is most of what a prompt
// costs: the compiler then keeps all it needs in registers and checks no bounds.
func stringEnd(b []byte) (rest []byte, escaped bool, why string) {
	for len(b) > 8 {
		// Eight bytes at a time up to the first quote, backslash, control character or byte that is not ASCII, and thirty-two once there
		// was nothing for sixteen: plain text of 220 KB takes half the time, and text full of escapes no more than without.
		if stop := stops(binary.LittleEndian.Uint64(b)) & highs; stop != 0 {
			b = b[bits.TrailingZeros64(stop)/8&7:]
		} else if len(b) <= 16 {
			b = b[8:]
			continue
		} else if stop := stops(binary.LittleEndian.Uint64(b[8:])) & highs; stop != 0 {
			b = b[8+bits.TrailingZeros64(stop)/8&7:]
		} else {
			for b = b[16:]; len(b) > 32; b = b[32:] {
				x0, x1 := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
				x2, x3 := binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
				if (stops(x0)|stops(x1)|stops(x2)|stops(x3))&highs != 0 {
					break
				}
			}
			continue
		}
	again: // escapes and wide characters come in runs
		if len(b) <= 8 {
			break
		}
		x := binary.LittleEndian.Uint32(b)
		if c := byte(x); c == '\\' {
			escaped = true
			if isEscape[byte(x>>8)] {
				if b = b[2:]; b[0] == '\\' {
					goto again
				}
				continue
			}
			if byte(x>>8) == 'u' && hexValue[byte(x>>16)]|hexValue[byte(x>>24)]|hexValue[b[4]]|hexValue[b[5]] >= 0 {
				if b = b[6:]; b[0] == '\\' {
					goto again
				}
				continue
			}
		} else if c >= utf8.RuneSelf {
			// Those of three and two bytes need no look at how they go on, but for E0, after which they may be too long, and ED, after
			// which they may be half of a pair.
			if x&0xc0c0f0 == 0x8080e0 && x&0xf != 0 && x&0xf != 0xd {
				if b = b[3:]; b[0] >= utf8.RuneSelf {
					goto again
				}
				continue
			}
			if x&0xc0e0 == 0x80c0 && x&0x1e != 0 {
				b = b[2:]
				continue
			}
			if x&0xc0c0f0ff == 0x808090f0 { // emoji and the like
				b = b[4:]
				continue
			}
		} else if c == '"' {
			return b, escaped, ""
		}
		n, why := stride(b)
		if n == 0 {
			return b, escaped, why
		}
		b = b[n:]
	}
	for len(b) > 0 && b[0] != '"' {
		if c := b[0]; c >= ' ' && c < utf8.RuneSelf && c != '\\' {
			b = b[1:]
			continue
		}
		escaped = escaped || b[0] == '\\'
		n, why := stride(b)
		if n == 0 {
			return b, escaped, why
		}
		b = b[n:]
	}
	if len(b) == 0 {
		why = "the string does not end"
	}
	return b, escaped, why
}

// stride is the length of the character or the escape at the start of b within a string; of none of either it is 0, and why says so.
func stride(b []byte) (n int, why string) {
	switch c := b[0]; {
	case c == '\\' && len(b) >= 2 && isEscape[b[1]]:
		return 2, ""
	case c == '\\' && len(b) >= 6 && b[1] == 'u' && hexValue[b[2]]|hexValue[b[3]]|hexValue[b[4]]|hexValue[b[5]] >= 0:
		return 6, ""
	case c == '\\':
		return 0, "not an escape"
	case c < ' ':
		return 0, "a control character in a string"
	}
	r, n := utf8.DecodeRune(b)
	if r == utf8.RuneError && n == 1 {
		return 0, "not UTF-8"
	}
	return n, ""
}

// highs are the high bits of eight bytes.
const highs = 0x8080808080808080

// stops has the high bit of the first byte of x that ends a plain stretch of a string: a quote, a backslash, a control character or
// a byte that is not ASCII, which has it itself. Above it others may be set that do not. With bit 1 flipped a quote is 0x20, next to
// the control characters, so that one difference borrows for both.
func stops(x uint64) uint64 {
	const ones = 0x0101010101010101
	return (x ^ 0x02*ones - 0x21*ones) | (x ^ '\\'*ones - ones) | x
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

// Unescape appends what the checked string raw stands for. A surrogate without its other half keeps its own three
// bytes, as it would have in WTF-8: two keys that differ stay different.
func Unescape(dst, raw []byte) []byte {
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

// HexDigit returns the value of one hexadecimal digit of either case.
func HexDigit(c byte) (byte, bool) {
	v := hexValue[c]
	return byte(v), v >= 0
}
