package metadata

import "net/http"

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
	Rank   Rank
	Role   Role // of the records to be read; "" while that is not known: then only what no role could permit is refused
}

// Authorizer decides whether the sender of a request may do something. An error with the methods
// HTTPStatus() int, Message() string, Challenge() string and Reason() string decides the answer;
// any other error is answered with 401.
type Authorizer interface {
	Authorize(r *http.Request, a Access) error
}

// AuthorizerFunc is a function as an Authorizer.
type AuthorizerFunc func(r *http.Request, a Access) error

// Authorize calls f.
func (f AuthorizerFunc) Authorize(r *http.Request, a Access) error { return f(r, a) }
