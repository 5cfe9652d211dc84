package auth

import (
	"fmt"
	"net/http"
)

// Code says what kind of refusal an Error is. It is the reason that goes to metrics and headers.
type Code string

// The kinds of refusal. Which check an invalid token failed is never told to its bearer.
const (
	NoCredentials     Code = "no_credentials"
	InvalidToken      Code = "invalid_token"
	InsufficientScope Code = "insufficient_scope"
	JWKSStale         Code = "jwks_stale" // the issuer's keys are too old to be believed: not the bearer's fault
)

// Error is a refusal. Its Message, Challenge and Status are for the caller and constant per Code;
// the wrapped cause is for the log.
type Error struct {
	Code Code
	Who  string // the subject of credentials that are valid; "" where they are not
	Err  error
}

// Error returns the code and the cause, for logs.
func (e *Error) Error() string {
	if e.Err == nil {
		return "auth: " + string(e.Code)
	}
	return "auth: " + string(e.Code) + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// HTTPStatus returns 403 for a valid token that may not do this, 503 where nobody can tell at present, else 401.
func (e *Error) HTTPStatus() int {
	switch e.Code {
	case InsufficientScope:
		return http.StatusForbidden
	case JWKSStale:
		return http.StatusServiceUnavailable
	}
	return http.StatusUnauthorized
}

// Message returns what the caller may read.
func (e *Error) Message() string {
	switch e.Code {
	case InsufficientScope:
		return "these credentials do not permit this"
	case JWKSStale:
		return "credentials cannot be checked at present"
	}
	return "missing or invalid credentials"
}

// Challenge returns the value of the answer's WWW-Authenticate header; "" for none.
func (e *Error) Challenge() string {
	switch e.Code {
	case NoCredentials:
		return `Bearer realm="pdrouter"`
	case InsufficientScope:
		return `Bearer realm="pdrouter", error="insufficient_scope"`
	case JWKSStale:
		return ""
	}
	return `Bearer realm="pdrouter", error="invalid_token"`
}

// Subject returns whom valid credentials name; "" where they are not valid. It is for the log.
func (e *Error) Subject() string { return e.Who }

// Reason returns the code as text.
func (e *Error) Reason() string { return string(e.Code) }

func invalid(err error) error { return &Error{Code: InvalidToken, Err: err} }

// forbidden refuses what valid credentials do not permit.
func forbidden(p Principal, format string, args ...any) error {
	return &Error{Code: InsufficientScope, Who: p.Subject, Err: fmt.Errorf(format, args...)}
}
