package metadata

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Bounds of what is taken in from the wire and from a store.
const (
	// MaxRecordBytes bounds one encoded record.
	MaxRecordBytes = 256 << 10

	maxDepth    = 8    // of nested arrays and maps
	maxElements = 8192 // of one array or map
)

var errTruncated = errors.New("ends in the middle of a value")

// scanner walks msgpack without building values, so that a few bytes cannot announce a huge array: the decoder that
// runs afterwards allocates what a header announces.
type scanner struct {
	b   []byte
	pos int
}

// CheckMsgpack returns nil if b is exactly one msgpack value whose nesting and counts are within the bounds of a record,
// so that it can be given to a decoder.
func CheckMsgpack(b []byte) error {
	s := scanner{b: b}
	if err := s.value(0); err != nil {
		return err
	}
	if s.pos != len(b) {
		return fmt.Errorf("%d bytes after the end", len(b)-s.pos)
	}
	return nil
}

// value steps over one value.
func (s *scanner) value(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d", maxDepth)
	}
	c, err := s.next(1)
	if err != nil {
		return err
	}
	switch b := c[0]; {
	case b <= 0x7f, b >= 0xe0, b == 0xc0, b == 0xc2, b == 0xc3: // small integers, nil, booleans
		return nil
	case b <= 0x8f:
		return s.pairs(int(b&0x0f), depth)
	case b <= 0x9f:
		return s.elements(int(b&0x0f), depth)
	case b <= 0xbf:
		return s.skip(int(b & 0x1f))
	default:
		return s.long(b, depth)
	}
}

// long steps over what follows a code from 0xc4 to 0xdf.
func (s *scanner) long(code byte, depth int) error {
	switch code {
	case 0xcc, 0xd0:
		return s.skip(1)
	case 0xcd, 0xd1:
		return s.skip(2)
	case 0xce, 0xd2, 0xca:
		return s.skip(4)
	case 0xcf, 0xd3, 0xcb:
		return s.skip(8)
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // extensions of 1 to 16 bytes, after their type
		return s.skip(1 + 1<<(code-0xd4))
	case 0xc4, 0xd9:
		return s.sized(1, 0)
	case 0xc5, 0xda:
		return s.sized(2, 0)
	case 0xc6, 0xdb:
		return s.sized(4, 0)
	case 0xc7:
		return s.sized(1, 1)
	case 0xc8:
		return s.sized(2, 1)
	case 0xc9:
		return s.sized(4, 1)
	case 0xdc, 0xde:
		return s.counted(2, code == 0xde, depth)
	case 0xdd, 0xdf:
		return s.counted(4, code == 0xdf, depth)
	}
	return fmt.Errorf("code 0x%x is not msgpack", code)
}

// sized steps over a length of width bytes, extra bytes, and as many bytes as the length says.
func (s *scanner) sized(width, extra int) error {
	n, err := s.number(width)
	if err != nil {
		return err
	}
	return s.skip(n + extra)
}

func (s *scanner) counted(width int, pairs bool, depth int) error {
	n, err := s.number(width)
	if err != nil {
		return err
	}
	if n > maxElements {
		return fmt.Errorf("%d elements; want at most %d", n, maxElements)
	}
	if pairs {
		return s.pairs(n, depth)
	}
	return s.elements(n, depth)
}

// fewKeys is up to how many keys of a map are compared with each other rather than looked up.
const fewKeys = 32

// pairs steps over n keys and values. A key that occurs twice is an error: readers disagree about it.
func (s *scanner) pairs(n, depth int) error {
	var room [fewKeys][]byte
	few := room[:0]
	var many map[string]struct{}
	if n > fewKeys {
		many = make(map[string]struct{}, min(n, len(s.b)-s.pos))
	}
	for range n {
		key, err := s.key(depth)
		if err != nil {
			return err
		}
		if many != nil {
			if _, ok := many[string(key)]; ok {
				return fmt.Errorf("key %.40q occurs twice", key)
			}
			many[string(key)] = struct{}{}
		} else {
			for _, old := range few {
				if string(old) == string(key) {
					return fmt.Errorf("key %.40q occurs twice", key)
				}
			}
			few = append(few, key)
		}
		if err := s.value(depth + 1); err != nil {
			return err
		}
	}
	return nil
}

// key steps over one key of a map. It returns the text of one that is text, however long its length is written, else its
// encoding.
func (s *scanner) key(depth int) ([]byte, error) {
	start := s.pos
	if err := s.value(depth + 1); err != nil {
		return nil, err
	}
	head := 0
	switch c := s.b[start]; {
	case c&0xe0 == 0xa0:
		head = 1
	case c == 0xd9:
		head = 2
	case c == 0xda:
		head = 3
	case c == 0xdb:
		head = 5
	}
	return s.b[start+head : s.pos], nil
}

func (s *scanner) elements(n, depth int) error {
	for range n {
		if err := s.value(depth + 1); err != nil {
			return err
		}
	}
	return nil
}

func (s *scanner) number(width int) (int, error) {
	b, err := s.next(width)
	if err != nil {
		return 0, err
	}
	switch width {
	case 1:
		return int(b[0]), nil
	case 2:
		return int(binary.BigEndian.Uint16(b)), nil
	}
	return int(binary.BigEndian.Uint32(b)), nil
}

func (s *scanner) skip(n int) error {
	_, err := s.next(n)
	return err
}

func (s *scanner) next(n int) ([]byte, error) {
	if n > len(s.b)-s.pos {
		return nil, errTruncated
	}
	s.pos += n
	return s.b[s.pos-n : s.pos], nil
}

// mapHead steps over the head of a map and returns its number of pairs.
func (s *scanner) mapHead() (int, error) {
	c, err := s.next(1)
	if err != nil {
		return 0, err
	}
	switch {
	case c[0]&0xf0 == 0x80:
		return int(c[0] & 0x0f), nil
	case c[0] == 0xde:
		return s.number(2)
	case c[0] == 0xdf:
		return s.number(4)
	}
	return 0, errors.New("not a map")
}

// arrayHead steps over the head of an array and returns its number of elements.
func (s *scanner) arrayHead() (n int, ok bool) {
	c, err := s.next(1)
	switch {
	case err != nil:
		return 0, false
	case c[0]&0xf0 == 0x90:
		return int(c[0] & 0x0f), true
	case c[0] == 0xdc:
		n, err = s.number(2)
	case c[0] == 0xdd:
		n, err = s.number(4)
	default:
		return 0, false
	}
	return n, err == nil
}

// text steps over a string and returns it.
func (s *scanner) text() (string, error) {
	c, err := s.next(1)
	if err != nil {
		return "", err
	}
	n := 0
	switch {
	case c[0]&0xe0 == 0xa0:
		n = int(c[0] & 0x1f)
	case c[0] == 0xd9:
		n, err = s.number(1)
	case c[0] == 0xda:
		n, err = s.number(2)
	case c[0] == 0xdb:
		n, err = s.number(4)
	default:
		return "", errors.New("a key is not a string")
	}
	if err != nil {
		return "", err
	}
	b, err := s.next(n)
	return string(b), err
}
