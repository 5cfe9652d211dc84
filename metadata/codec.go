package metadata

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// encodePayload returns the record as this version encodes it, without who vouches for it.
func encodePayload(rec Record) ([]byte, error) {
	rec.Published, rec.Expires = rec.Published.UTC(), rec.Expires.UTC()
	b, err := msgpack.Marshal(&rec)
	if err != nil {
		return nil, fmt.Errorf("metadata: engine %s rank %v: encode: %w", rec.Engine, rec.Rank, err)
	}
	return b, nil
}

// decodePayload is the inverse of encodePayload for the payload of an envelope. It does not validate.
func decodePayload(b []byte) (Record, error) {
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
	err := eachField(b, func(name string, _, value []byte) {
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
		err := eachField(value, func(part string, _, value []byte) {
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

// Sign returns the record with a signature of v over all of it.
func (r Record) Sign(v Voucher) (Record, error) {
	r.Binding, r.Payload = nil, nil
	p, err := r.payload()
	if err != nil {
		return Record{}, err
	}
	if r.KeyID, r.Signature, err = v.Sign(p); err != nil {
		return Record{}, fmt.Errorf("metadata: engine %s rank %v: sign: %w", r.Engine, r.Rank, err)
	}
	r.Payload = p
	return r, nil
}

// Verify returns nil if the record carries a signature that v accepts: one of a gateway that v trusts, or one of the
// agent's key to which such a gateway has bound the record's rank. Fields that this version does not know are covered too.
func (r Record) Verify(v Voucher) error {
	p, err := r.payload()
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

// UnmarshalSigned decodes a record and verifies it. It refuses a record that ended more than a day ago: no
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
	return rec, rec.Verify(v)
}

// eachField walks over an encoded map and calls f with the name and the encodings of each key and value. A name that occurs twice is an
// error: readers disagree about it.
func eachField(b []byte, f func(name string, key, value []byte)) error {
	s := scanner{b: b}
	n, err := s.mapHead()
	if err != nil {
		return err
	}
	if n > maxElements {
		return fmt.Errorf("%d fields; want at most %d", n, maxElements)
	}
	seen := make(map[string]bool, min(n, 64))
	for range n {
		start := s.pos
		name, err := s.text()
		if err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("field %.40q occurs twice", name)
		}
		seen[name] = true
		middle := s.pos
		if err := s.value(1); err != nil {
			return err
		}
		f(name, b[start:middle], b[middle:s.pos])
	}
	if s.pos != len(b) {
		return errors.New("bytes after the end")
	}
	return nil
}
