package edge

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net/url"

	"pdrouter/auth"
	"pdrouter/router/openai"
)

type principal = auth.Principal

// modelList is the answer to GET /v1/models.
func (s *Snapshot) modelList(who principal) []byte {
	b, _ := json.Marshal(struct { // strings and numbers only: it never fails
		Object string `json:"object"`
		Data   []card `json:"data"`
	}{"list", s.cards(who)})
	return b
}

// oneModel is the answer to GET /v1/models/{name}. A name may stand in the path as it is, or escaped as one part of a path.
func (s *Snapshot) oneModel(who principal, name string) ([]byte, *openai.Error) {
	for _, c := range s.cards(who) {
		if c.ID == name || url.PathEscape(c.ID) == name {
			b, _ := json.Marshal(c)
			return b, nil
		}
	}
	return nil, openai.ErrNoModel(name)
}

func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	return "req-" + hex.EncodeToString(b[:])
}
