package metadata

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// Marshal returns the record as msgpack. Equal records give equal bytes.
func Marshal(rec Record) ([]byte, error) {
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
	if err := check(b); err != nil {
		return Record{}, err
	}
	if _, err := signedPart(b); err != nil { // refuses doubled fields
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
	return rec, rec.Validate()
}

// payload returns what a signature of the record covers: its encoding without key id and signature.
func (r Record) payload() ([]byte, error) {
	r.KeyID, r.Signature = "", nil
	return Marshal(r)
}

// Sign returns the record with a signature of v over all its other fields.
func (r Record) Sign(v Voucher) (Record, error) {
	p, err := r.payload()
	if err != nil {
		return Record{}, err
	}
	r.KeyID, r.Signature, err = v.Sign(p)
	if err != nil {
		return Record{}, fmt.Errorf("metadata: engine %s rank %v: sign: %w", r.Engine, r.Rank, err)
	}
	return r, nil
}

// Verify returns nil if the record carries a signature that v accepts.
func (r Record) Verify(v Voucher) error {
	p, err := r.payload()
	if err != nil {
		return err
	}
	if err := v.Verify(r.KeyID, p, r.Signature); err != nil {
		return fmt.Errorf("metadata: engine %s rank %v: signature: %w", r.Engine, r.Rank, err)
	}
	return nil
}

// UnmarshalSigned decodes a record and checks its signature over the bytes as they came, so that fields which this
// version does not know are covered too.
func UnmarshalSigned(b []byte, v Voucher) (Record, error) {
	rec, err := Unmarshal(b)
	if err != nil {
		return Record{}, err
	}
	p, err := signedPart(b)
	if err != nil {
		return Record{}, fmt.Errorf("metadata: decode: %w", err)
	}
	if err := v.Verify(rec.KeyID, p, rec.Signature); err != nil {
		return Record{}, fmt.Errorf("metadata: engine %s rank %v: signature: %w", rec.Engine, rec.Rank, err)
	}
	return rec, nil
}

// signedPart returns an encoded record with its key id and signature emptied, and all other bytes as they are.
func signedPart(b []byte) ([]byte, error) {
	s := scanner{b: b}
	n, err := s.mapHead()
	if err != nil {
		return nil, err
	}
	if n > maxElements {
		return nil, fmt.Errorf("%d fields; want at most %d", n, maxElements)
	}
	seen := make(map[string]bool, min(n, 64))
	out := bytes.NewBuffer(make([]byte, 0, len(b)))
	out.Write(b[:s.pos])
	for range n {
		start := s.pos
		key, err := s.text()
		if err != nil {
			return nil, err
		}
		if seen[key] {
			return nil, fmt.Errorf("field %.40q occurs twice", key)
		}
		seen[key] = true
		out.Write(b[start:s.pos])
		start = s.pos
		if err := s.value(1); err != nil {
			return nil, err
		}
		switch key {
		case "kid":
			out.WriteByte(0xa0) // the empty string
		case "sig":
			out.WriteByte(0xc0) // nil
		default:
			out.Write(b[start:s.pos])
		}
	}
	if s.pos != len(b) {
		return nil, errors.New("bytes after the end")
	}
	return out.Bytes(), nil
}
