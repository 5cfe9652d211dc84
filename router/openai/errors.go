package openai

import (
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"pdrouter/router/openai/answer"
	"pdrouter/router/reason"
)

// Error is an error with an answer for the client. Msg, Param and Type are sent, Err is for the log only.
type Error struct {
	Status     int           // the HTTP status, also the answer's "code"
	Type       string        // the answer's "type"; see errorType
	Msg        string        // the answer's "message"; cut to 1 KiB; no addresses, no tokens, no whole inputs
	Param      string        // the answer's "param"; "" becomes null
	Reason     reason.Reason // x-pdrouter-reason
	Close      bool          // the client's connection ends with this answer: its framing cannot be trusted
	NoRetry    bool          // x-should-retry: false
	RetryAfter time.Duration // retry-after-ms; 0: not sent
	Challenge  string        // www-authenticate; "": not sent
	Err        error         // the cause, for the log
	Subject    string        // whom the credentials name, for the log; "" if unknown
	Tenant     string        // under whom the caller's use is counted, for the log; "" if unknown
	Model      string        // for the log, where it is known who asked for it; one that is served, or the one that does not exist
}

// Error is what the log shows.
func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("router: %d %s: %s: %v", e.Status, e.Reason, e.Msg, e.Err)
	}
	return fmt.Sprintf("router: %d %s: %s", e.Status, e.Reason, e.Msg)
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// AppendJSON appends the answer's body: {"error":{"message","type","param","code"}}.
func (e *Error) AppendJSON(dst []byte) []byte {
	msg := e.Msg
	if len(msg) > answer.MaxErrorMessage {
		msg = Clip(msg, answer.MaxErrorMessage)
	}
	dst = append(dst, `{"error":{"message":`...)
	dst = AppendString(dst, msg)
	dst = append(dst, `,"type":`...)
	dst = AppendString(dst, e.Type)
	dst = append(dst, `,"param":`...)
	if e.Param == "" {
		dst = append(dst, "null"...)
	} else {
		dst = AppendString(dst, e.Param)
	}
	dst = append(dst, `,"code":`...)
	dst = strconv.AppendInt(dst, int64(e.Status), 10)
	return append(dst, "}}"...)
}

// AppendFrame appends the server-sent event that tells of the error once an answer has begun. What follows it is
// the cut of the connection, never data: [DONE].
func (e *Error) AppendFrame(dst []byte) []byte {
	dst = append(dst, "data: "...)
	dst = e.AppendJSON(dst)
	return append(dst, "\n\n"...)
}

// Clip cuts s to at most n bytes at the start of a rune, three dots included.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	end := n - len("...")
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "..."
}

// Given reports whether a member's value stands there and is not null.
func Given(raw []byte) bool { return len(raw) > 0 && string(raw) != "null" }

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < 0x20 || r == 0x7f || r == 0x2028 || r == 0x2029:
			dst = append(dst, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}

// errorType is the OpenAI error type of an answer with that status, as vLLM spells it.
func errorType(status int) string {
	switch status {
	case 401:
		return "AuthenticationError"
	case 403:
		return "PermissionDeniedError"
	case 404:
		return "NotFoundError"
	case 429:
		return "RateLimitError"
	case 499, 503:
		return "ServiceUnavailableError"
	case 500:
		return "InternalServerError"
	case 501:
		return "NotImplementedError"
	case 502:
		return "BadGatewayError"
	case 504:
		return "GatewayTimeoutError"
	}
	return "BadRequestError"
}

// NewError returns the error answer for a reason, with that message.
func NewError(why reason.Reason, format string, args ...any) *Error {
	may, after := why.Retry()
	return &Error{Status: why.Status(), Type: errorType(why.Status()), Reason: why, Msg: fmt.Sprintf(format, args...),
		NoRetry: !may, RetryAfter: after, Close: why.Close()}
}

// Because adds the cause, for the log.
func (e *Error) Because(cause error) *Error {
	e.Err = cause
	return e
}

func ErrBadRequest(why reason.Reason, param, format string, args ...any) *Error {
	e := NewError(why, format, args...)
	e.Param = param
	return e
}

func ErrFraming(format string, args ...any) *Error {
	return NewError(reason.BadFraming, format, args...)
}

func ErrTooLarge(limit int) *Error {
	return NewError(reason.BodyTooLarge, "The request body is larger than %d bytes.", limit)
}

func ErrNoModel(model string) *Error {
	e := ErrBadRequest(reason.UnknownModel, "model", "The model `%s` does not exist.", Clip(model, 256))
	e.Model, e.Err = Clip(model, 256), errors.New("no such model")
	return e
}

func ErrUnauthorized(cause error) *Error {
	e := NewError(reason.Unauthorized, "Unauthorized")
	e.Challenge, e.Err = "Bearer", cause
	return e
}

// ErrNoKeys answers credentials that cannot be checked at present. An error with a method Reason may name the stale key set.
func ErrNoKeys(cause error) *Error {
	why := reason.NoKeys
	var known interface{ Reason() string }
	if errors.As(cause, &known) && known.Reason() == reason.JWKSStale.String() {
		why = reason.JWKSStale
	}
	return NewError(why, "Credentials cannot be checked at present.").Because(cause)
}

func ErrForbidden(cause error) *Error {
	return NewError(reason.Forbidden, "Forbidden").Because(cause)
}

func ErrDraining() *Error { return NewError(reason.Draining, "The server is shutting down.") }

func ErrBadUpstream() *Error {
	return NewError(reason.BadUpstream, "The engine's answer could not be used.")
}

func ErrInternal(cause error) *Error {
	return NewError(reason.Internal, "Internal server error").Because(cause)
}

// ErrQueue answers a request that got no place with the engines.
func ErrQueue(why reason.Reason, model string) *Error {
	switch model = Clip(model, 256); why {
	case reason.QueueFull:
		return NewError(why, "Too many requests wait for the model `%s`.", model)
	case reason.QueueTimeout:
		return NewError(why, "The request waited too long for the model `%s`.", model)
	case reason.Objective:
		return NewError(why, "The engines of the model `%s` have too much to do to answer in the time that is wanted.", model)
	case reason.Shutdown:
		return ErrDraining()
	}
	return NewError(why, "") // the client has left
}
