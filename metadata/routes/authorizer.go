package routes

import (
	"net/http"

	"pdrouter/internal/refusal"
	"pdrouter/metadata"
)

// Action is what a caller of Handler wants to do.
type Action string

// The actions on records.
const (
	Read  Action = "read"
	Write Action = "write" // also delete
	List  Action = "list"
)

// Access names one action and what it is done to.
type Access struct {
	Action Action
	Engine string // "" for List
	Rank   metadata.Rank
	Role   metadata.Role // of the records to be read; "" while that is not known: then only what no role could permit is refused
	// Apart says why the engine's records, or this rank's, are none that the caller's own engine needs: only a caller whose
	// credentials name the engine may read them. "" while nothing speaks against it.
	Apart string
}

// Caller is who sent a request, as far as the routes must know.
type Caller struct {
	Subject string
	Engine  string          // the engine whose agent it is; "" for others, as gateways and people
	Role    metadata.Role   // of that engine; "" if that is not said
	Ranks   []metadata.Rank // of that engine, whose agent it is; none means all of them
	Size    metadata.Rank   // of that engine, which its records must have; zero if that is not said
	Reads   []string        // engines that it may read, whether they pair with its own or not
	Key     []byte          // the Ed25519 public key that its credentials bind it to; nil if they bind it to none
}

// sized reports whether the record's engine is of the size that the caller's credentials say.
func (c Caller) sized(r metadata.Record) bool { return c.Size == metadata.Rank{} || c.Size == r.Size }

// Authorizer decides whether the sender of a request may do something, and says who it is. An error with the methods
// HTTPStatus() int, Message() string, Challenge() string and Reason() string decides the answer, any other is answered
// with 401; Subject() string, if it has that, is for the log.
type Authorizer interface {
	Authorize(r *http.Request, a Access) (Caller, error)
}

// AuthorizerFunc is a function as an Authorizer.
type AuthorizerFunc func(r *http.Request, a Access) (Caller, error)

// Authorize calls f.
func (f AuthorizerFunc) Authorize(r *http.Request, a Access) (Caller, error) { return f(r, a) }

// denying is an Authorizer whose errors all say what the answer is.
type denying struct{ Authorizer }

func (d denying) Authorize(r *http.Request, a Access) (Caller, error) {
	c, err := d.Authorizer.Authorize(r, a)
	if err != nil {
		err = refusal.Denied(err)
	}
	return c, err
}
