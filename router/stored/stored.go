// Package stored is about responses that engines keep (/v1/responses): which engine holds one and whose it is, and the leases of background
// responses, which last until the engine has ended them. The edge asks it for whom a request is, the exchange tells it what an engine keeps.
// It knows neither routes nor requests.
package stored

import (
	"context"
	"encoding/json"
	"time"

	"pdrouter/internal/httpsyntax"
)

// Responses remembers which engine holds which stored response, for all gateways. Put must not wait; Await waits, for a
// moment, until the other gateways can know what was put; Get may wait too; its error says that the store could not be asked. It
// must be safe for concurrent use.
type Responses interface {
	Put(key string, value []byte, lease time.Duration)
	Await(key string)
	Get(ctx context.Context, key string) (value []byte, ok bool, err error)
}

// Holder says who holds a response, and whose it is.
type Holder struct {
	Engine string `json:"engine"`
	Model  string `json:"model"`
	Owner  string `json:"owner"`
}

// Value is the holder as Responses remembers it.
func (h Holder) Value() []byte {
	value, _ := json.Marshal(h) // strings only: it never fails
	return value
}

// ReadHolder reads such a value. It reports false if it is none.
func ReadHolder(value []byte) (h Holder, ok bool) {
	err := json.Unmarshal(value, &h)
	return h, err == nil
}

// Owner names whose responses are whose: the tenant, or who has no tenant.
func Owner(tenant, subject string) string {
	if tenant != "" {
		return "tenant " + tenant
	}
	return "subject " + subject
}

// IsResponseID reports whether s may be the id of a stored response, so that it can stand in a path.
func IsResponseID(s string) bool {
	for i := range len(s) {
		if c := s[i]; !httpsyntax.IsAlphanumeric(c) && c != '_' && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= 128
}
