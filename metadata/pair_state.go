package metadata

// PairState is what a gateway knows of one prefill and one decode engine of a model. It is an element of the answer to
// GET /metadata/v1/pairs.
type PairState struct {
	Model    string `json:"model"`
	Prefill  string `json:"prefill"`
	Decode   string `json:"decode"`
	Pairable bool   `json:"pairable"`      // nothing that is known of the two forbids it
	Warm     bool   `json:"warm"`          // they have shaken hands, or need not: no request waits for that
	Why      string `json:"why,omitempty"` // why it is not both
}
