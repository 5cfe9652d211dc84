package records

import "errors"

// What is put before a payload that is signed. No context is the begin of another one, so that a signature of one domain never
// verifies in another.
const (
	sharedContext = "pdrouter shared fact v1\x00"
	ticketContext = "pdrouter kvplane ticket v2\x00"
)

// Domain signs and checks payloads of one kind other than records, with the keys of Records.
type Domain struct {
	records *Records
	context string
}

// Shared returns the domain of what gateways tell each other. It implements shared.Signer.
func (r *Records) Shared() *Domain { return &Domain{r, sharedContext} }

// Tickets returns the domain of what gateways tell engines of connector kvplane of single transfers. It implements ticket.Signer
// and ticket.Verifier.
func (r *Records) Tickets() *Domain { return &Domain{r, ticketContext} }

// Sign returns the id of the own key and its signature of payload.
func (d *Domain) Sign(payload []byte) (keyID string, signature []byte, err error) {
	return d.records.sign(d.context, payload)
}

// Verify returns nil if signature is one of payload by the trusted key of that id.
func (d *Domain) Verify(keyID string, payload, signature []byte) error {
	return d.records.verify(d.context, keyID, payload, signature)
}

// errNoKey is the error of a signer that can only check.
var errNoKey = errors.New("auth: records: no key to sign with")
