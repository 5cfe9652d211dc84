package metadata

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// Enroller derives the keys with which gateways sign what they say to one run of an engine, named by its
// Incarnation.ID: the one that this gateway signs with first. None means that it signs nothing.
type Enroller interface {
	Enrolment(id string) ([][]byte, error)
}

// Enrolment is what an engine is told when it has published a record: never to anybody else, and it is in no record.
type Enrolment struct {
	Keys [][]byte  // secrets of the gateways and this run of the engine, the newest first
	Now  time.Time // by the gateway's clock; zero if the gateway has no keys
}

// Bounds on an enrolment.
const (
	maxEnrolment      = 4 << 10 // bytes
	maxEnrolmentKeys  = 8
	maxEnrolmentBytes = 64 // of a key
)

// String does not show the keys.
func (e Enrolment) String() string { return fmt.Sprintf("enrolment with %d keys", len(e.Keys)) }

// GoString is String, so that no verb prints the keys.
func (e Enrolment) GoString() string { return e.String() }

// enrolmentBody is an Enrolment on its way.
type enrolmentBody struct {
	Keys [][]byte    `msgpack:"keys,omitempty"`
	Now  int64       `msgpack:"now_ms,omitempty"` // since 1970
	Seal *sealedBody `msgpack:"seal,omitempty"`   // the rest, to a record that has a Key
}

// enrolment returns what a record is answered with once it is taken in, nothing if there is nothing to tell. A record with a
// Key is told sealed. One without is told in plain, but not if the caller's credentials are bound to a key: its signed record
// is no proof that this request is its author's.
func (h *Handler) enrolment(rec Record, caller Caller) ([]byte, error) {
	if h.enroller == nil {
		return nil, nil
	}
	keys, err := h.enroller.Enrolment(rec.ID())
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	if len(rec.Key) == 0 && len(caller.Key) > 0 {
		if rec.Connector == "kvplane" { // it would take «nothing to tell» for a gateway that signs nothing
			return nil, bad("no_key", "the record has no key to seal the enrolment to")
		}
		return nil, nil
	}
	plain, err := msgpack.Marshal(&enrolmentBody{Keys: keys, Now: time.Now().UnixMilli()})
	if err != nil || len(rec.Key) == 0 {
		return plain, err
	}
	sealed, err := seal(rec, plain)
	if err != nil {
		return nil, bad("bad_record", "%.200s", err.Error())
	}
	return msgpack.Marshal(&enrolmentBody{Seal: &sealed})
}

// enrol answers a record that was taken in.
func enrol(w http.ResponseWriter, b []byte) error {
	if len(b) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.Header().Set("Cache-Control", "no-store")
	w.Write(b)
	return nil
}

// unmarshalEnrolment reads the answer to a record; no bytes are an enrolment without keys. agree opens one that is sealed.
func unmarshalEnrolment(b []byte, rec Record, agree func(Record, []byte) ([]byte, error)) (Enrolment, error) {
	if len(b) == 0 {
		return Enrolment{}, nil
	}
	body, err := decodeEnrolment(b)
	if err != nil {
		return Enrolment{}, err
	}
	if body.Seal != nil {
		if agree == nil {
			return Enrolment{}, errors.New("enrolment is sealed, and there is nothing to open it with")
		}
		plain, err := unseal(rec, *body.Seal, func(public []byte) ([]byte, error) { return agree(rec, public) })
		if err != nil {
			return Enrolment{}, err
		}
		if body, err = decodeEnrolment(plain); err != nil {
			return Enrolment{}, err
		}
		if len(body.Keys) == 0 {
			return Enrolment{}, errors.New("enrolment is sealed and has no keys")
		}
	}
	return Enrolment{Keys: body.Keys, Now: time.UnixMilli(body.Now)}, nil
}

func decodeEnrolment(b []byte) (enrolmentBody, error) {
	if len(b) > maxEnrolment {
		return enrolmentBody{}, fmt.Errorf("enrolment of %d bytes; want at most %d", len(b), maxEnrolment)
	}
	if err := check(b); err != nil {
		return enrolmentBody{}, fmt.Errorf("enrolment: %w", err)
	}
	var body enrolmentBody
	if err := msgpack.Unmarshal(b, &body); err != nil {
		return enrolmentBody{}, fmt.Errorf("enrolment: %w", err)
	}
	if len(body.Keys) > maxEnrolmentKeys {
		return enrolmentBody{}, fmt.Errorf("enrolment with %d keys; want at most %d", len(body.Keys), maxEnrolmentKeys)
	}
	for _, k := range body.Keys {
		if len(k) == 0 || len(k) > maxEnrolmentBytes {
			return enrolmentBody{}, fmt.Errorf("enrolment with a key of %d bytes; want 1 to %d", len(k), maxEnrolmentBytes)
		}
	}
	return body, nil
}
