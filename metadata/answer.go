package metadata

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
)

// answer is the OpenAI shape of an error.
type answer struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	} `json:"error"`
}

// refusal is how a request to the metadata routes ends when it does not succeed.
type refusal struct {
	Status    int
	Reason    string // for the header and the log
	Msg       string // for the caller
	Challenge string // WWW-Authenticate; "" for none
	Err       error  // for the log; nil if Msg says it all
}

// forbidden refuses what the caller's credentials do not permit. Callers are told no more than that; err is for the log.
func forbidden(reason string, err error) error {
	return &refusal{Status: http.StatusForbidden, Reason: reason, Msg: "these credentials do not permit this", Err: err}
}

// Error returns the reason and the cause.
func (r *refusal) Error() string {
	if r.Err != nil {
		return r.Reason + ": " + r.Err.Error()
	}
	return r.Reason + ": " + r.Msg
}

// refused is what an Authorizer's error may say about the answer.
type refused interface {
	error
	HTTPStatus() int
	Message() string
	Challenge() string
	Reason() string
}

// refuse makes any error a refusal.
func refuse(err error) *refusal {
	var r *refusal
	var a refused
	switch {
	case errors.As(err, &r):
		return r
	case errors.As(err, &a):
		return &refusal{Status: a.HTTPStatus(), Reason: a.Reason(), Msg: a.Message(), Challenge: a.Challenge(), Err: err}
	case errors.Is(err, ErrNotFound):
		return &refusal{Status: http.StatusNotFound, Reason: "not_found", Msg: "no such record", Err: err}
	case errors.Is(err, ErrStale):
		return &refusal{Status: http.StatusConflict, Reason: "stale", Msg: "a newer record is known", Err: err}
	}
	return &refusal{Status: http.StatusServiceUnavailable, Reason: "store_unavailable", Msg: "the store cannot be reached", Err: err}
}

// kind returns the type that goes with a status in OpenAI's error shape.
func kind(status int) string {
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusMethodNotAllowed:
		return "BadRequestError"
	case http.StatusUnauthorized:
		return "AuthenticationError"
	case http.StatusForbidden:
		return "PermissionDeniedError"
	case http.StatusNotFound:
		return "NotFoundError"
	case http.StatusConflict:
		return "ConflictError"
	case http.StatusServiceUnavailable:
		return "ServiceUnavailableError"
	}
	return "InternalServerError"
}

// write sends the refusal.
func (r *refusal) write(w http.ResponseWriter) {
	var a answer
	a.Error.Message, a.Error.Type, a.Error.Code = r.Msg, kind(r.Status), r.Status
	body, err := json.Marshal(a)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-PDRouter-Reason", r.Reason)
	h.Set("X-Should-Retry", strconv.FormatBool(r.Status >= 500))
	if r.Challenge != "" {
		h.Set("WWW-Authenticate", r.Challenge)
	}
	w.WriteHeader(r.Status)
	w.Write(body)
}

// answerError returns the error that an answer stands for.
func answerError(status int, body []byte) error {
	switch status {
	case http.StatusNotFound:
		return ErrNotFound
	case http.StatusConflict:
		return ErrStale
	}
	var a answer
	if json.Unmarshal(body, &a) != nil || a.Error.Message == "" {
		a.Error.Message = http.StatusText(status)
	}
	return &StatusError{Status: status, Message: a.Error.Message}
}
