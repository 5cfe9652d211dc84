package shared

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// Signer signs what gateways tell each other, and checks what others have signed.
type Signer interface {
	Sign(payload []byte) (keyID string, signature []byte, err error)
	Verify(keyID string, payload, signature []byte) error
}

// pastLease is how long after its end a lease is put down to clocks that differ.
const pastLease = time.Minute

var (
	errOlder = errors.New("it is older than what is known")
	errOver  = errors.New("its lease is over")
)

// signing signs entries before they go to Redis, and checks those that come from there: with a signer, nobody but who has a
// gateway's key can make one, or have one pass for that of another key, another time or a longer lease.
type signing struct {
	signer Signer // nil: entries are kept as they come
	log    *slog.Logger

	refused atomic.Uint64
	said    atomic.Bool
}

// signed is an entry as Redis has it.
type signed struct {
	Value     []byte `json:"value"`
	At        int64  `json:"at"`    // nanoseconds since 1970: when it was entered
	Until     int64  `json:"until"` // milliseconds since 1970
	KeyID     string `json:"key_id"`
	Signature []byte `json:"signature"`
}

// payload is what is signed of an entry under a name.
func (s *signed) payload(name string) []byte {
	b := binary.AppendUvarint(nil, uint64(len(name)))
	b = append(b, name...)
	b = binary.BigEndian.AppendUint64(b, uint64(s.At))
	b = binary.BigEndian.AppendUint64(b, uint64(s.Until))
	return append(b, s.Value...)
}

// sign returns the entry as Redis gets it under the name.
func (s *signing) sign(name string, it entry) ([]byte, error) {
	if s.signer == nil {
		return it.value, nil
	}
	out := signed{Value: it.value, At: it.at, Until: it.until.UnixMilli()}
	var err error
	if out.KeyID, out.Signature, err = s.signer.Sign(out.payload(name)); err != nil {
		return nil, fmt.Errorf("shared: %s: %w", name, err)
	}
	return json.Marshal(out)
}

// check returns the entry that Redis has under the name, where it is to end in left from now.
func (s *signing) check(name string, b []byte, now time.Time, left time.Duration) (entry, error) {
	it := entry{value: b, until: now.Add(left)}
	if s.signer == nil {
		return it, nil
	}
	var in signed
	if err := json.Unmarshal(b, &in); err != nil {
		return entry{}, fmt.Errorf("shared: it is not signed: %w", err)
	}
	if err := s.signer.Verify(in.KeyID, in.payload(name), in.Signature); err != nil {
		return entry{}, fmt.Errorf("shared: %w", err)
	}
	until := time.UnixMilli(in.Until)
	if now.Sub(until) > pastLease {
		return entry{}, fmt.Errorf("shared: %w", errOver)
	}
	it.value, it.at = in.Value, in.At
	if until.Before(it.until) {
		it.until = until
	}
	return it, nil
}

// refuse counts an entry that is ignored, and says so the first time.
func (s *signing) refuse(name string, why error) {
	s.refused.Add(1)
	if !s.said.Swap(true) {
		s.log.Error("an entry in Redis is not as a gateway signed it: it is ignored, and so is every other one", "name", name, "err", why)
	}
}
