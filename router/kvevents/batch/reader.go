package batch

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// reader steps over MessagePack. A library's decoder makes room for as many elements as are announced and goes as deep as they are nested.
type reader struct {
	b  []byte
	at int
}

var errShort = errors.New("ends too early")

// next returns the next n bytes and steps over them.
func (r *reader) next(n int) ([]byte, error) {
	if n < 0 || n > len(r.b)-r.at {
		return nil, errShort
	}
	s := r.b[r.at : r.at+n]
	r.at += n
	return s, nil
}

// code returns the next byte without stepping over it; 0xc1, which MessagePack never uses, at the end.
func (r *reader) code() byte {
	if r.at >= len(r.b) {
		return 0xc1
	}
	return r.b[r.at]
}

// number reads n bytes as a number.
func (r *reader) number(n int) (uint64, error) {
	s, err := r.next(n)
	if err != nil {
		return 0, err
	}
	switch n {
	case 1:
		return uint64(s[0]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(s)), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(s)), nil
	}
	return binary.BigEndian.Uint64(s), nil
}

// null steps over nil, if it is next.
func (r *reader) null() bool {
	if r.code() != 0xc0 {
		return false
	}
	r.at++
	return true
}

// head reads the head of an array or of a map: its code if it is short, from and to base+15, or code16 and the one after it. Every element
// takes a byte at least, so there are never more than the bytes that are left.
func (r *reader) head(base, code16 byte, most int) (int, error) {
	c := r.code()
	n := uint64(c & 0x0f)
	var err error
	switch {
	case c&0xf0 == base:
		r.at++
	case c == code16:
		r.at++
		n, err = r.number(2)
	case c == code16+1:
		r.at++
		n, err = r.number(4)
	default:
		return 0, fmt.Errorf("code %#x is no %s", c, map[byte]string{0x90: "array", 0x80: "map"}[base])
	}
	switch {
	case err != nil:
		return 0, err
	case n > uint64(len(r.b)-r.at):
		return 0, errShort
	case n > uint64(most):
		return 0, fmt.Errorf("%d elements; want at most %d", n, most)
	}
	return int(n), nil
}

func (r *reader) array(most int) (int, error) { return r.head(0x90, 0xdc, most) }
func (r *reader) pairs(most int) (int, error) { return r.head(0x80, 0xde, most) }
func (r *reader) isMap() bool                 { c := r.code(); return c&0xf0 == 0x80 || c == 0xde || c == 0xdf }
func (r *reader) isText() bool                { c := r.code(); return c&0xe0 == 0xa0 || c >= 0xd9 && c <= 0xdb }
func (r *reader) textOrNull() ([]byte, error) {
	if r.null() {
		return nil, nil
	}
	return r.text()
}

// text reads a string.
func (r *reader) text() ([]byte, error) {
	c := r.code()
	switch {
	case c&0xe0 == 0xa0:
		r.at++
		return r.next(int(c & 0x1f))
	case c >= 0xd9 && c <= 0xdb:
		r.at++
		return r.sized(1 << (c - 0xd9))
	}
	return nil, fmt.Errorf("code %#x is no string", c)
}

// sized reads a length of so many bytes, and as many bytes as it says.
func (r *reader) sized(bytes int) ([]byte, error) {
	n, err := r.number(bytes)
	if err != nil {
		return nil, err
	}
	if n > uint64(len(r.b)) {
		return nil, errShort
	}
	return r.next(int(n))
}

// integer reads any integer as its 64 bits; negative reports that it is below 0.
func (r *reader) integer() (n uint64, negative bool, err error) {
	c := r.code()
	switch {
	case c <= 0x7f:
		r.at++
		return uint64(c), false, nil
	case c >= 0xe0:
		r.at++
		return uint64(int8(c)), true, nil
	case c >= 0xcc && c <= 0xcf:
		r.at++
		n, err = r.number(1 << (c - 0xcc))
		return n, false, err
	case c >= 0xd0 && c <= 0xd3:
		r.at++
		bytes := 1 << (c - 0xd0)
		n, err = r.number(bytes)
		shift := 64 - 8*bytes
		n = uint64(int64(n<<shift) >> shift)
		return n, int64(n) < 0, err
	}
	return 0, false, fmt.Errorf("code %#x is no integer", c)
}

// count reads an integer from 0 to most.
func (r *reader) count(most int) (int, error) {
	n, negative, err := r.integer()
	if err == nil && (negative || n > uint64(most)) {
		err = fmt.Errorf("is %d; want 0 to %d", int64(n), most)
	}
	return int(n), err
}

// hash reads a block's hash: an integer, or bytes of which the last 8 count.
func (r *reader) hash() (uint64, error) {
	c := r.code()
	if c < 0xc4 || c > 0xc6 {
		n, _, err := r.integer()
		return n, err
	}
	r.at++
	s, err := r.sized(1 << (c - 0xc4))
	if err != nil {
		return 0, err
	}
	if len(s) < 8 {
		return 0, fmt.Errorf("hash of %d bytes; want 8 or more", len(s))
	}
	return binary.BigEndian.Uint64(s[len(s)-8:]), nil
}

func (r *reader) hashes(to []uint64) ([]uint64, error) {
	n, err := r.array(maxBlocks)
	if err != nil {
		return to, err
	}
	for range n {
		h, err := r.hash()
		if err != nil {
			return to, err
		}
		to = append(to, h)
	}
	return to, nil
}

func (r *reader) tokens(to []uint32) ([]uint32, error) {
	n, err := r.array(maxTokens)
	if err != nil {
		return to, err
	}
	for range n {
		if left := r.b[r.at:]; len(left) >= 3 && left[0] == 0xcd { // most tokens of most vocabularies
			to = append(to, uint32(left[1])<<8|uint32(left[2]))
			r.at += 3
			continue
		}
		id, negative, err := r.integer()
		if err != nil {
			return to, err
		}
		if negative || id > 1<<32-1 {
			return to, fmt.Errorf("token %d; want 0 to %d", int64(id), uint32(1<<32-1))
		}
		to = append(to, uint32(id))
	}
	return to, nil
}

// fields walks over an array whose elements are fields in the order of names, or over a map.
type fields struct {
	names []string
	isMap bool
	at, n int
	name  string // of the value that is next; "" if it has none that is known
	err   error  // ends the walk; the caller sets it too
}

func (r *reader) fields(names []string) fields {
	f := fields{names: names, isMap: r.isMap()}
	if f.isMap {
		f.n, f.err = r.pairs(maxFields)
	} else {
		f.n, f.err = r.array(maxFields)
	}
	return f
}

// next goes on to the next field, whose value the caller must read or skip. It reports false after the last and after an error.
func (f *fields) next(r *reader) bool {
	if f.err != nil || f.at == f.n {
		return false
	}
	f.at++
	f.name = ""
	switch {
	case f.isMap && r.isText():
		var s []byte
		s, f.err = r.text()
		f.name = known(s)
	case f.isMap:
		f.err = r.skip(0)
	case f.at <= len(f.names):
		f.name = f.names[f.at-1]
	}
	return f.err == nil
}

// known returns the name of a field without making a string of it; "" for names that mean nothing here.
func known(s []byte) string {
	for _, name := range storedFields {
		if string(s) == name {
			return name
		}
	}
	for _, name := range batchFields {
		if string(s) == name {
			return name
		}
	}
	return ""
}

// peekType returns the kind of an event of positional form without stepping over it; 0 of a map.
func (r *reader) peekType() Kind {
	if r.isMap() {
		return 0
	}
	ahead := *r
	if n, err := ahead.array(maxFields); err != nil || n == 0 {
		return 0
	}
	s, err := ahead.text()
	if err != nil {
		return 0
	}
	return kindOf(s)
}

// skip steps over one value of any kind.
func (r *reader) skip(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d", maxDepth)
	}
	c := r.code()
	var err error
	switch {
	case c <= 0x7f, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3:
		r.at++
		return nil
	case c&0xe0 == 0xa0, c >= 0xd9 && c <= 0xdb:
		_, err = r.text()
	case c >= 0xc4 && c <= 0xc6:
		r.at++
		_, err = r.sized(1 << (c - 0xc4))
	case c >= 0xc7 && c <= 0xc9: // an extension: its length, its type
		r.at++
		if _, err = r.sized(1 << (c - 0xc7)); err == nil {
			_, err = r.next(1)
		}
	case c >= 0xd4 && c <= 0xd8: // an extension of 1 to 16 bytes
		r.at++
		_, err = r.next(1 + 1<<(c-0xd4))
	case c == 0xca:
		_, err = r.next(5)
	case c == 0xcb:
		_, err = r.next(9)
	case c&0xf0 == 0x90, c == 0xdc, c == 0xdd:
		return r.skipAll(r.array, 1, depth)
	case r.isMap():
		return r.skipAll(r.pairs, 2, depth)
	default:
		_, _, err = r.integer()
	}
	return err
}

func (r *reader) skipAll(head func(most int) (int, error), each, depth int) error {
	n, err := head(len(r.b))
	for range each * n {
		if err != nil {
			break
		}
		err = r.skip(depth + 1)
	}
	return err
}
