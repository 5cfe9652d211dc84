package kubesecrets

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"pdrouter/auth/keys"
)

const (
	// publishAhead is how long a public key is in its Secret before its private key signs: longer than kubelets take to bring a Secret into pods
	// (about two minutes), and gateways to read it.
	publishAhead = 10 * time.Minute
	// retireAfter is how long a replaced public key stays: longer than any token or shared fact that it signed.
	retireAfter = 48 * time.Hour
)

// signer is a key that signs, the one that follows it, and those that it followed. It is kept in one Secret, and read and written whole.
type signer struct {
	current, next *keys.Key // next is nil while no rotation is under way
	since         time.Time // when current began to sign
	published     time.Time // when the public part of next was written where gateways read it; zero before
	retired       []retired
}

type retired struct {
	key *keys.Key
	at  time.Time
}

// begin makes a next key, unless there is one.
func (s *signer) begin() (err error) {
	if s.next == nil {
		s.next, err = keys.Generate(keys.EdDSA)
		s.published = time.Time{}
	}
	return err
}

// advance lets the next key sign when it was published for long enough, and forgets keys that were retired for long enough.
func (s *signer) advance(now time.Time) {
	if s.next != nil && !s.published.IsZero() && now.Sub(s.published) >= publishAhead {
		s.retired = append(s.retired, retired{s.current.Public(), now})
		s.current, s.next, s.since, s.published = s.next, nil, now, time.Time{}
	}
	kept := s.retired[:0]
	for _, r := range s.retired {
		if now.Sub(r.at) < retireAfter {
			kept = append(kept, r)
		}
	}
	s.retired = kept
}

// replace makes a fresh key sign at once, and forgets all others.
func (s *signer) replace(now time.Time) (err error) {
	*s = signer{since: now}
	s.current, err = keys.Generate(keys.EdDSA)
	return err
}

// public returns a file for each key whose signatures are good.
func (s *signer) public() (Data, error) {
	files := map[string]*keys.Key{"current.jwk": s.current}
	if s.next != nil {
		files["next.jwk"] = s.next
	}
	for i, r := range s.retired {
		files[fmt.Sprintf("retired-%d.jwk", i)] = r.key
	}
	d := Data{}
	for name, k := range files {
		b, err := k.Public().JWK()
		if err != nil {
			return nil, err
		}
		d[name] = b
	}
	return d, nil
}

// signerJSON is how a signer is kept, beside its private key in a file of its own.
type signerJSON struct {
	Since     time.Time       `json:"since"`
	Next      json.RawMessage `json:"next,omitempty"`
	Published time.Time       `json:"published,omitzero"`
	Retired   []retiredJSON   `json:"retired,omitempty"`
}

type retiredJSON struct {
	Key json.RawMessage `json:"key"`
	At  time.Time       `json:"at"`
}

// put writes a signer into the data of a Secret: OF.jwk has the private key that signs, OF.json the rest.
func (s *signer) put(d Data, of string) (err error) {
	if d[of+".jwk"], err = s.current.JWK(); err != nil {
		return err
	}
	j := signerJSON{Since: s.since, Published: s.published}
	if s.next != nil {
		if j.Next, err = s.next.JWK(); err != nil {
			return err
		}
	}
	for _, r := range s.retired {
		b, err := r.key.JWK()
		if err != nil {
			return err
		}
		j.Retired = append(j.Retired, retiredJSON{b, r.at})
	}
	d[of+".json"], err = json.Marshal(j)
	return err
}

// readSigner reads what put wrote.
func readSigner(d Data, of string) (*signer, error) {
	s := &signer{}
	var err error
	if s.current, err = signing(d[of+".jwk"]); err != nil {
		return nil, fmt.Errorf("%s.jwk: %w", of, err)
	}
	var j signerJSON
	if b := d[of+".json"]; b != nil { // a key that somebody put there has no history
		if err := json.Unmarshal(b, &j); err != nil {
			return nil, fmt.Errorf("%s.json: %w", of, err)
		}
	}
	s.since, s.published = j.Since, j.Published
	if j.Next != nil {
		if s.next, err = signing(j.Next); err != nil {
			return nil, fmt.Errorf("%s.json: next: %w", of, err)
		}
	}
	for _, r := range j.Retired {
		k, err := keys.Parse(r.Key)
		if err != nil {
			return nil, fmt.Errorf("%s.json: retired: %w", of, err)
		}
		s.retired = append(s.retired, retired{k, r.At})
	}
	return s, nil
}

// signing parses a private key.
func signing(b []byte) (*keys.Key, error) {
	k, err := keys.Parse(b)
	if err == nil && !k.Signs() {
		err = errors.New("it is no private key")
	}
	return k, err
}
