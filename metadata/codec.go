package metadata

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// Marshal returns the record as msgpack. Equal records give equal bytes. A record that was changed and still has the bytes
// that it was decoded from is an error.
func Marshal(rec Record) ([]byte, error) {
	if rec.Encoded == nil {
		return encode(rec)
	}
	was := Record{}
	if err := msgpack.Unmarshal(rec.Encoded, &was); err != nil {
		return nil, fmt.Errorf("metadata: engine %s rank %v: encode: %w", rec.Engine, rec.Rank, err)
	}
	before, err := encode(was)
	if err != nil {
		return nil, err
	}
	now, err := encode(rec)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(before, now) {
		return nil, fmt.Errorf("metadata: engine %s rank %v: encode: the record was changed, and Encoded is what it was before", rec.Engine, rec.Rank)
	}
	return rec.Encoded, nil
}

// encode returns the record as this version encodes it.
func encode(rec Record) ([]byte, error) {
	rec.Published, rec.Expires = rec.Published.UTC(), rec.Expires.UTC()
	b, err := msgpack.Marshal(&rec)
	if err != nil {
		return nil, fmt.Errorf("metadata: engine %s rank %v: encode: %w", rec.Engine, rec.Rank, err)
	}
	if len(b) > MaxRecordBytes {
		return nil, fmt.Errorf("metadata: engine %s rank %v: encode: %d bytes; want at most %d", rec.Engine, rec.Rank, len(b), MaxRecordBytes)
	}
	return b, nil
}

// Unmarshal is the inverse of Marshal for bytes from anywhere. It refuses records that are too large, of another version,
// or that fail Validate. Fields that this version does not know are passed over.
func Unmarshal(b []byte) (Record, error) {
	rec, err := decode(b)
	if err != nil {
		return Record{}, fmt.Errorf("metadata: decode: %w", err)
	}
	return rec, nil
}

func decode(b []byte) (Record, error) {
	if len(b) > MaxRecordBytes {
		return Record{}, fmt.Errorf("%d bytes; want at most %d", len(b), MaxRecordBytes)
	}
	if err := CheckMsgpack(b); err != nil {
		return Record{}, err
	}
	if _, err := signedPart(b); err != nil { // refuses doubled fields
		return Record{}, err
	}
	if err := checkMaps(b); err != nil {
		return Record{}, err
	}
	var head struct {
		Version int `msgpack:"v"`
	}
	if err := msgpack.Unmarshal(b, &head); err != nil {
		return Record{}, err
	}
	if head.Version != RecordVersion {
		return Record{}, fmt.Errorf("version is %d; want %d", head.Version, RecordVersion)
	}
	var rec Record
	if err := msgpack.Unmarshal(b, &rec); err != nil {
		return Record{}, err
	}
	rec.Published, rec.Expires = rec.Published.UTC(), rec.Expires.UTC()
	if err := rec.Validate(); err != nil {
		return Record{}, err
	}
	if len(rec.Signature) > 0 { // its signature is of these bytes
		if again, err := encode(rec); err != nil || !bytes.Equal(again, b) {
			rec.Encoded = bytes.Clone(b)
		}
	}
	return rec, nil
}

// checkMaps refuses an encoded record in which a list stands for one of its parts: the decoder would take the parts' fields
// by their order, which this format does not have.
func checkMaps(b []byte) error {
	wrong := ""
	each := func(parent string, value []byte) {
		s := scanner{b: value}
		n, ok := s.arrayHead()
		for range n {
			ok = ok && s.pos < len(value) && isMap(value[s.pos]) && s.value(1) == nil
		}
		if !ok {
			wrong = parent
		}
	}
	_, err := eachField(b, func(name string, _, value []byte) {
		switch name {
		case "rank", "size", "process", "layout":
			if !isMap(value[0]) {
				wrong = name
				return
			}
		}
		if name != "layout" {
			return
		}
		_, err := eachField(value, func(part string, _, value []byte) {
			if (part == "regions" || part == "groups") && value[0] != 0xc0 { // nil
				each(part, value)
			}
		})
		if err != nil {
			wrong = name
		}
	})
	if err == nil && wrong != "" {
		err = fmt.Errorf("%s is not made of maps", wrong)
	}
	return err
}

// isMap reports whether an encoding that begins with this byte is a map's.
func isMap(code byte) bool { return code&0xf0 == 0x80 || code == 0xde || code == 0xdf }

// payload returns what a signature of the record is to cover: its encoding without key id, signature and binding.
func (r Record) payload() ([]byte, error) {
	r.KeyID, r.Signature, r.Binding, r.Encoded = "", nil, nil, nil
	return Marshal(r)
}

// Sign returns the record with a signature of v over all its other fields.
func (r Record) Sign(v Voucher) (Record, error) {
	p, err := r.payload()
	if err != nil {
		return Record{}, err
	}
	r.Binding, r.Encoded = nil, nil
	r.KeyID, r.Signature, err = v.Sign(p)
	if err != nil {
		return Record{}, fmt.Errorf("metadata: engine %s rank %v: sign: %w", r.Engine, r.Rank, err)
	}
	return r, nil
}

// Verify returns nil if the record carries a signature that v accepts: one of a gateway that v trusts, or one of the
// agent's key to which such a gateway has bound the record's rank.
func (r Record) Verify(v Voucher) error {
	b, err := Marshal(r)
	if err != nil {
		return err
	}
	return r.verify(v, b)
}

// UnmarshalSigned decodes a record and checks its signature, as Verify does, over the bytes as they came, so that
// fields which this version does not know are covered too. It refuses a record that ended more than a day ago: no
// store keeps one so long, so it is a replay. It also refuses a record whose lease is longer than a day.
func UnmarshalSigned(b []byte, v Voucher) (Record, error) {
	rec, err := Unmarshal(b)
	if err != nil {
		return Record{}, err
	}
	if now := time.Now(); rec.Expires.Before(now.Add(-FenceKept)) {
		return Record{}, fmt.Errorf("metadata: engine %s rank %v: ended at %v, long ago", rec.Engine, rec.Rank, rec.Expires)
	}
	if rec.Lifetime() > FenceKept {
		return Record{}, fmt.Errorf("metadata: engine %s rank %v: lives %v; want at most %v", rec.Engine, rec.Rank, rec.Lifetime(), FenceKept)
	}
	return rec, rec.verify(v, b)
}

// verify checks the signature of the record that is encoded as b.
func (r Record) verify(v Voucher, b []byte) error {
	p, err := signedPart(b)
	switch {
	case err != nil:
	case len(r.Binding) == 0:
		err = v.Verify(r.KeyID, p, r.Signature)
	default:
		var key ed25519.PublicKey
		if key, err = boundKey(v, r, time.Now()); err == nil {
			err = r.signedBy(key, p)
		}
	}
	if err != nil {
		return fmt.Errorf("metadata: engine %s rank %v: signature: %w", r.Engine, r.Rank, err)
	}
	return nil
}

// signedPart returns an encoded record with its key id and signature emptied, without the binding that a gateway has
// added, and with all other bytes as they are.
func signedPart(b []byte) ([]byte, error) {
	var out bytes.Buffer
	out.Grow(len(b))
	n, bound := 0, false
	head, err := eachField(b, func(name string, key, value []byte) {
		switch name {
		case "binding":
			bound = true
			return
		case "kid":
			value = []byte{0xa0} // the empty string
		case "sig":
			value = []byte{0xc0} // nil
		}
		n++
		out.Write(key)
		out.Write(value)
	})
	if err != nil {
		return nil, err
	}
	if bound { // as the agent wrote it, who had one field less
		head = mapLen(n)
	}
	return append(head[:len(head):len(head)], out.Bytes()...), nil
}

// pairsWithout returns the pairs of an encoded map but for the named one, and how many they are.
func pairsWithout(b []byte, without string) (pairs []byte, n int, err error) {
	_, err = eachField(b, func(name string, key, value []byte) {
		if name != without {
			n++
			pairs = append(append(pairs, key...), value...)
		}
	})
	return pairs, n, err
}

// mapLen returns the shortest head of a map of n pairs.
func mapLen(n int) []byte {
	if n < 16 {
		return []byte{0x80 | byte(n)}
	}
	return []byte{0xde, byte(n >> 8), byte(n)} // n is at most maxElements
}

// eachField walks over an encoded map, calls f with the name and the encodings of each key and value, and returns the
// map's head. A name that occurs twice is an error: readers disagree about it.
func eachField(b []byte, f func(name string, key, value []byte)) (head []byte, err error) {
	s := scanner{b: b}
	n, err := s.mapHead()
	if err != nil {
		return nil, err
	}
	if n > maxElements {
		return nil, fmt.Errorf("%d fields; want at most %d", n, maxElements)
	}
	head = b[:s.pos]
	seen := make(map[string]bool, min(n, 64))
	for range n {
		start := s.pos
		name, err := s.text()
		if err != nil {
			return nil, err
		}
		if seen[name] {
			return nil, fmt.Errorf("field %.40q occurs twice", name)
		}
		seen[name] = true
		middle := s.pos
		if err := s.value(1); err != nil {
			return nil, err
		}
		f(name, b[start:middle], b[middle:s.pos])
	}
	if s.pos != len(b) {
		return nil, errors.New("bytes after the end")
	}
	return head, nil
}
