package metadata

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// envelope is a statement and who vouches for it. On the wire it is a msgpack array of its four fields. The signature is of the
// payload's bytes as they are, after a context that says what is signed, so a reader needs to know nothing of the payload to check it.
type envelope struct {
	_msgpack  struct{} `msgpack:",as_array"` //nolint:unused // msgpack reads its tag
	Payload   []byte
	KeyID     string
	Signature []byte
	Binding   []byte // of a record that its agent signed; see binding
}

const envelopeHead = 0x94 // of an array of four

// seal returns an encoded envelope of at most so many bytes.
func seal(e envelope, most int) ([]byte, error) {
	b, err := msgpack.Marshal(&e)
	if err != nil {
		return nil, err
	}
	if len(b) > most {
		return nil, fmt.Errorf("%d bytes; want at most %d", len(b), most)
	}
	return b, nil
}

// unseal decodes an envelope from anywhere, of at most so many bytes. Its parts lie in b. Its payload is one msgpack map in which no list stands
// for one of the maps of a record or a binding, and no name occurs twice.
func unseal(b []byte, most int) (envelope, error) {
	var e envelope
	if len(b) > most {
		return e, fmt.Errorf("%d bytes; want at most %d", len(b), most)
	}
	if err := CheckMsgpack(b); err != nil {
		return e, err
	}
	if b[0] != envelopeHead {
		return e, errors.New("it is no array of payload, key id, signature and binding")
	}
	if err := msgpack.Unmarshal(b, &e); err != nil {
		return e, err
	}
	if err := CheckMsgpack(e.Payload); err != nil {
		return e, fmt.Errorf("payload: %w", err)
	}
	return e, checkMaps(e.Payload)
}

// Marshal returns the record as msgpack, in its envelope. Equal records give equal bytes. A record that was changed after it was signed is
// an error.
func Marshal(rec Record) ([]byte, error) {
	payload, err := rec.payload()
	if err != nil {
		return nil, err
	}
	b, err := seal(envelope{Payload: payload, KeyID: rec.KeyID, Signature: rec.Signature, Binding: rec.Binding}, MaxRecordBytes)
	if err != nil {
		return nil, fmt.Errorf("metadata: engine %s rank %v: encode: %w", rec.Engine, rec.Rank, err)
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
	e, err := unseal(b, MaxRecordBytes)
	if err != nil {
		return Record{}, err
	}
	rec, err := decodePayload(e.Payload)
	if err != nil {
		return Record{}, err
	}
	rec.KeyID, rec.Signature, rec.Binding = e.KeyID, e.Signature, e.Binding
	if len(rec.Signature) > 0 {
		rec.Payload = bytes.Clone(e.Payload)
	}
	return rec, rec.Validate()
}

// payload returns what a signature of the record covers: its bytes as they were signed, or its encoding if it was not.
func (r Record) payload() ([]byte, error) {
	now, err := encodePayload(r)
	if err != nil || r.Payload == nil || bytes.Equal(now, r.Payload) {
		return now, err
	}
	was, err := decodePayload(r.Payload)
	if err != nil {
		return nil, fmt.Errorf("metadata: engine %s rank %v: encode: %w", r.Engine, r.Rank, err)
	}
	before, err := encodePayload(was)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(before, now) {
		return nil, fmt.Errorf("metadata: engine %s rank %v: encode: the record was changed, and Payload is what it was before", r.Engine, r.Rank)
	}
	return r.Payload, nil // a newer version's: it has fields that this one does not know
}
