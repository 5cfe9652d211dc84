package edge

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"pdrouter/auth"
	"pdrouter/router/openai"
)

// keyed reports whether clients of the route may show their credentials as X-Api-Key, as those of Anthropic's API do.
func (rt *route) keyed() bool {
	return rt.path == pathMessages || strings.HasPrefix(rt.path, pathMessages+"/")
}

// oneOf returns the value of a field with credentials; "" if there is none. A request with several has none: a proxy
// in front of the gateway may have checked another one.
func oneOf(values [][]byte) (string, error) {
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		return string(values[0]), nil
	}
	return "", &auth.Error{Code: auth.InvalidToken, Err: fmt.Errorf("%d fields with credentials", len(values))}
}

// withKey returns credentials as they stand in Authorization, where they may have come as a key too.
func withKey(authorization, key string) (string, error) {
	bearer := "Bearer " + key
	switch {
	case key == "":
		return authorization, nil
	case authorization == "" || authorization == bearer:
		return bearer, nil
	}
	return "", &auth.Error{Code: auth.InvalidToken, Err: errors.New("the headers Authorization and X-Api-Key differ")}
}

// errRefused answers credentials that were not accepted. The body is the same whatever was wrong with them.
func errRefused(err error) *openai.Error {
	status := http.StatusUnauthorized
	var refused interface{ HTTPStatus() int }
	if errors.As(err, &refused) {
		status = refused.HTTPStatus()
	}
	var e *openai.Error
	switch status {
	case http.StatusServiceUnavailable:
		return openai.ErrNoKeys(err)
	case http.StatusForbidden:
		e = openai.ErrForbidden(err)
	default:
		e = openai.ErrUnauthorized(err)
	}
	var challenge interface{ Challenge() string }
	if errors.As(err, &challenge) {
		e.Challenge = challenge.Challenge()
	}
	var known interface{ Subject() string }
	if errors.As(err, &known) {
		e.Subject = known.Subject()
	}
	return e
}
