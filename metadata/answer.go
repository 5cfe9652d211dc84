package metadata

import (
	"encoding/json"
	"errors"
	"log/slog"
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
	Reason    string // for the log, and for the header unless credentials do not permit the request
	Subject   string // whom the credentials name, for the log; "" where nobody is known
	Msg       string // for the caller
	Challenge string // WWW-Authenticate; "" for none
	Known     uint64 // newest generation of the engine whose record is stale; 0 if that is not told
	Err       error  // for the log; nil if Msg says it all
}

// insufficient is all that the header says of credentials that do not permit a request: its sender is not told which of the
// checks failed.
const insufficient = "insufficient_scope"

// forbidden refuses what the caller's credentials do not permit. Callers are told no more than that; the rest is for the
// log.
func forbidden(reason, subject string, err error) error {
	return &refusal{Status: http.StatusForbidden, Reason: reason, Subject: subject, Msg: "these credentials do not permit this",
		Challenge: `Bearer realm="pdrouter", error="` + insufficient + `"`, Err: err}
}

// Error returns the reason and the cause.
func (r *refusal) Error() string { return r.Reason + ": " + r.cause() }

func (r *refusal) cause() string {
	if r.Err != nil {
		return r.Err.Error()
	}
	return r.Msg
}

// refused is what the error of whoever checks credentials may say about the answer.
type refused interface {
	error
	HTTPStatus() int
	Message() string
	Challenge() string
	Reason() string
}

// Refuse answers a request that is refused, in OpenAI's error shape, and logs one line: of which routes, method, path,
// sender, subject, status, reason and cause, never what the credentials are. The methods HTTPStatus() int,
// Message() string, Challenge() string and Reason() string of err decide the answer, and Subject() string, if err has it,
// says who the sender is. An error without them is answered with 401.
func Refuse(w http.ResponseWriter, r *http.Request, routes string, err error, log *slog.Logger) {
	refuse(denied(err)).answer(w, r, routes, log)
}

// denied makes an error that does not say what the answer is one that does.
func denied(err error) error {
	var a refused
	if errors.As(err, &a) {
		return err
	}
	return &refusal{Status: http.StatusUnauthorized, Reason: "invalid_token", Msg: "missing or invalid credentials",
		Challenge: `Bearer realm="pdrouter", error="invalid_token"`, Err: err}
}

// refuse makes any error a refusal.
func refuse(err error) *refusal {
	var r *refusal
	var a refused
	switch {
	case errors.As(err, &r):
		return r
	case errors.As(err, &a):
		r = &refusal{Status: a.HTTPStatus(), Reason: a.Reason(), Msg: a.Message(), Challenge: a.Challenge(), Err: err}
		var known interface{ Subject() string }
		if errors.As(err, &known) {
			r.Subject = known.Subject()
		}
		return r
	case errors.Is(err, ErrNotFound):
		return &refusal{Status: http.StatusNotFound, Reason: "not_found", Msg: "no such record", Err: err}
	case errors.Is(err, ErrStale):
		r = &refusal{Status: http.StatusConflict, Reason: "stale", Msg: "a newer record is known", Err: err}
		var newer *Superseded
		if errors.As(err, &newer) { // only who may write the engine's records comes so far
			r.Known = newer.Known
		}
		return r
	}
	return &refusal{Status: http.StatusServiceUnavailable, Reason: "store_unavailable", Msg: "the store cannot be reached", Err: err}
}

// answer sends the refusal and logs it, as a warning where somebody tried what he may not or something does not work.
func (r *refusal) answer(w http.ResponseWriter, req *http.Request, routes string, log *slog.Logger) {
	level := slog.LevelInfo
	if r.Status == http.StatusUnauthorized || r.Status == http.StatusForbidden || r.Status >= 500 {
		level = slog.LevelWarn
	}
	log.Log(req.Context(), level, routes+": refused", "method", req.Method, "path", req.URL.Path, "remote", req.RemoteAddr,
		"subject", r.Subject, "status", r.Status, "reason", r.Reason, "err", r.cause())
	r.write(w)
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
	reason := r.Reason
	if r.Status == http.StatusForbidden {
		reason = insufficient
	}
	h.Set("X-PDRouter-Reason", reason)
	h.Set("X-Should-Retry", strconv.FormatBool(r.Status >= 500))
	if r.Known != 0 {
		h.Set(generationHeader, strconv.FormatUint(r.Known, 10))
	}
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
