package metadata

// PairState is what a gateway knows of one prefill and one decode engine of a model. It is an element of the answer to
// GET /metadata/v1/pairs.
type PairState struct {
	Model    string `json:"model"`
	Prefill  string `json:"prefill"`
	Decode   string `json:"decode"`
	Pairable bool   `json:"pairable"`         // nothing that is known of the two forbids it
	Warm     bool   `json:"warm"`             // both are up and have shaken hands: no request waits for that
	Reason   string `json:"reason,omitempty"` // the word of a PairReason; only if it is not pairable
	Why      string `json:"why,omitempty"`    // why it is not both
}
