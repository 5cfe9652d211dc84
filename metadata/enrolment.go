package metadata

import (
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
	Keys [][]byte `msgpack:"keys"`
	Now  int64    `msgpack:"now_ms"` // since 1970
}

// enrol answers a record that was taken in.
func (h *Handler) enrol(w http.ResponseWriter, inc Incarnation) error {
	var keys [][]byte
	if h.enroller != nil {
		var err error
		if keys, err = h.enroller.Enrolment(inc.ID()); err != nil {
			return err
		}
	}
	if len(keys) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	b, err := msgpack.Marshal(enrolmentBody{Keys: keys, Now: time.Now().UnixMilli()})
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.Header().Set("Cache-Control", "no-store")
	w.Write(b)
	return nil
}

// unmarshalEnrolment reads the answer to a record; no bytes are an enrolment without keys.
func unmarshalEnrolment(b []byte) (Enrolment, error) {
	if len(b) == 0 {
		return Enrolment{}, nil
	}
	if len(b) > maxEnrolment {
		return Enrolment{}, fmt.Errorf("enrolment of %d bytes; want at most %d", len(b), maxEnrolment)
	}
	if err := check(b); err != nil {
		return Enrolment{}, fmt.Errorf("enrolment: %w", err)
	}
	var body enrolmentBody
	if err := msgpack.Unmarshal(b, &body); err != nil {
		return Enrolment{}, fmt.Errorf("enrolment: %w", err)
	}
	if len(body.Keys) > maxEnrolmentKeys {
		return Enrolment{}, fmt.Errorf("enrolment with %d keys; want at most %d", len(body.Keys), maxEnrolmentKeys)
	}
	for _, k := range body.Keys {
		if len(k) == 0 || len(k) > maxEnrolmentBytes {
			return Enrolment{}, fmt.Errorf("enrolment with a key of %d bytes; want 1 to %d", len(k), maxEnrolmentBytes)
		}
	}
	return Enrolment{Keys: body.Keys, Now: time.UnixMilli(body.Now)}, nil
}
