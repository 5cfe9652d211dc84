package auth

import "errors"

// factContext is put before what is signed of facts that gateways share.
const factContext = "pdrouter shared fact v1\x00"

// Facts signs and checks what gateways tell each other besides records, with the keys of Records. No signature of one can
// pass for one of the other. It implements shared.Signer.
type Facts struct{ records *Records }

// Facts returns a signer and checker with these keys.
func (r *Records) Facts() *Facts { return &Facts{r} }

// Sign returns the id of the own key and its signature of payload.
func (f *Facts) Sign(payload []byte) (keyID string, signature []byte, err error) {
	return f.records.sign(factContext, payload)
}

// Verify returns nil if signature is one of payload by the trusted key of that id.
func (f *Facts) Verify(keyID string, payload, signature []byte) error {
	return f.records.verify(factContext, keyID, payload, signature)
}

// errNoKey is the error of whoever is to sign and can only check.
var errNoKey = errors.New("auth: records: no key to sign with")
