// Package refusal answers requests that are refused, on every listener but the clients': one error shape, OpenAI's, the same headers
// and one log line. It does not decide what is refused: the routes of metadata, the control routes of engines, the admin listener and
// the operations listener call it with an error.
package refusal

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
)

// body is the OpenAI shape of an error.
type body struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	} `json:"error"`
}

// Error is how a request ends that is refused.
type Error struct {
	Status    int
	Reason    string // for the log, and for the header unless credentials do not permit the request
	Subject   string // whom the credentials name, for the log; "" if they name no caller
	Msg       string // for the caller
	Challenge string // WWW-Authenticate; "" for none
	Err       error  // for the log; nil if Msg says it all
}

// Insufficient is all that the header says of credentials that do not permit a request: its sender is not told which of the
// checks failed.
const Insufficient = "insufficient_scope"

// Forbidden refuses what the caller's credentials do not permit. Callers are told no more than that; the rest is for the
// log.
func Forbidden(reason, subject string, err error) error {
	return &Error{Status: http.StatusForbidden, Reason: reason, Subject: subject, Msg: "these credentials do not permit this",
		Challenge: `Bearer realm="pdrouter", error="` + Insufficient + `"`, Err: err}
}

// Error returns the reason and the cause.
func (r *Error) Error() string { return r.Reason + ": " + r.cause() }

func (r *Error) cause() string {
	if r.Err != nil {
		return r.Err.Error()
	}
	return r.Msg
}

// answered is an error that says how it is answered, as those of package auth do.
type answered interface {
	error
	HTTPStatus() int
	Message() string
	Challenge() string
	Reason() string
}

// Answer answers a request that is refused, in OpenAI's error shape, and logs one line: of which routes, method, path,
// sender, subject, status, reason and cause, never what the credentials are. If err is an *Error, it is the answer. Else the methods
// HTTPStatus() int, Message() string, Challenge() string and Reason() string of err decide the answer, and Subject() string, if err
// has it, says who the sender is. An error without them is answered with 401.
func Answer(w http.ResponseWriter, r *http.Request, routes string, err error, log *slog.Logger) {
	Of(Denied(err)).Answer(w, r, routes, log)
}

// Denied makes an error that does not say what the answer is one that does.
func Denied(err error) error {
	if Of(err) != nil {
		return err
	}
	return &Error{Status: http.StatusUnauthorized, Reason: "invalid_token", Msg: "missing or invalid credentials",
		Challenge: `Bearer realm="pdrouter", error="invalid_token"`, Err: err}
}

// Of returns err as an *Error, or nil if err does not say how it is answered.
func Of(err error) *Error {
	var r *Error
	var a answered
	switch {
	case errors.As(err, &r):
		return r
	case errors.As(err, &a):
		r = &Error{Status: a.HTTPStatus(), Reason: a.Reason(), Msg: a.Message(), Challenge: a.Challenge(), Err: err}
		var known interface{ Subject() string }
		if errors.As(err, &known) {
			r.Subject = known.Subject()
		}
	}
	return r
}

// Answer sends the refusal and logs it: as a warning if the sender may not do this, or if something does not work.
func (r *Error) Answer(w http.ResponseWriter, req *http.Request, routes string, log *slog.Logger) {
	level := slog.LevelInfo
	if r.Status == http.StatusUnauthorized || r.Status == http.StatusForbidden || r.Status >= 500 {
		level = slog.LevelWarn
	}
	log.Log(req.Context(), level, routes+": refused", "method", req.Method, "path", req.URL.Path, "remote", req.RemoteAddr,
		"subject", r.Subject, "status", r.Status, "reason", r.Reason, "err", r.cause())
	r.Write(w)
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

// Write sends the refusal.
func (r *Error) Write(w http.ResponseWriter) {
	var a body
	a.Error.Message, a.Error.Type, a.Error.Code = r.Msg, kind(r.Status), r.Status
	b, err := json.Marshal(a)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)))
	reason := r.Reason
	if r.Status == http.StatusForbidden {
		reason = Insufficient
	}
	h.Set("X-PDRouter-Reason", reason)
	h.Set("X-Should-Retry", strconv.FormatBool(r.Status >= 500))
	if r.Challenge != "" {
		h.Set("WWW-Authenticate", r.Challenge)
	}
	w.WriteHeader(r.Status)
	w.Write(b)
}
