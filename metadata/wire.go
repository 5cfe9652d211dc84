package metadata

import "time"

// What requests and answers of the metadata routes have besides records.
const (
	// ContentType is the media type of a record, of several, and of a list of engines as machines send and read them.
	ContentType = "application/msgpack"
	// ProofHeader carries the signature under a withdrawal, base64url, if the agent's token is bound to a key: see Withdrawal.
	ProofHeader = "X-PDRouter-Proof"
	// PublishedHeader says how many ranks an engine has published, in an answer that has fewer of them: those that map onto the
	// caller's.
	PublishedHeader = "X-PDRouter-Published"
	// GenerationHeader says, in the answer to a record that is refused as stale, which generation of its engine is known, in
	// decimal.
	GenerationHeader = "X-PDRouter-Generation"
)

// Listed is one engine in the answer to GET /metadata/v1/engines.
type Listed struct {
	Incarnation `msgpack:",inline"`
	Role        Role      `msgpack:"role" json:"role"`
	Connector   string    `msgpack:"connector" json:"connector"`
	Ranks       int       `msgpack:"ranks" json:"ranks"` // published, also those that the caller may not read
	Size        Rank      `msgpack:"size" json:"size"`
	Expires     time.Time `msgpack:"expires" json:"expires_at"` // the earliest of the ranks that the caller may read
}

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

// WatchEvent is one event of GET /metadata/v1/watch: what happened, and to which run of which engine. A client takes one without a
// kind as a sign that the stream lives.
type WatchEvent struct {
	Kind        WatchKind
	Incarnation // the data; none for WatchSync
}

// WatchKind is the name of an event of a watch.
type WatchKind string

// The events of a watch.
const (
	WatchSync   WatchKind = "sync"   // anything may have changed; from here on every change is told
	WatchPut    WatchKind = "put"    // what can be read of an engine is new or has changed
	WatchDelete WatchKind = "delete" // nothing can be read of an engine any more: withdrawn, its lease ended, or no longer for this reader
)
