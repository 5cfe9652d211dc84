package router

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"pdrouter/router/openai/sse"
)

// maxErrorMessage is the most bytes of a message that a client is sent.
const maxErrorMessage = 1024

// Reasons of errors made here: the value of x-pdrouter-reason, in metrics and in the log.
const (
	reasonBadFraming    = "bad_framing"
	reasonBadHost       = "bad_host"
	reasonHeadTooLarge  = "head_too_large"
	reasonBadJSON       = "bad_json"
	reasonDuplicateKey  = "duplicate_key"
	reasonBadField      = "bad_field"
	reasonOverCap       = "over_cap"
	reasonTransferField = "transfer_params"
	reasonTooLarge      = "body_too_large"
	reasonBodyMemory    = "body_memory"
	reasonContentType   = "content_type"
	reasonNoRoute       = "no_route"
	reasonMethod        = "method"
	reasonNoModel       = "unknown_model"
	reasonForbidden     = "forbidden"
	reasonUnauthorized  = "unauthorized"
	reasonNoKeys        = "no_keys"
	reasonNoEngine      = "no_engine"
	reasonNoPair        = "no_pair"
	reasonTimeout       = "timeout"
	reasonBadUpstream   = "bad_upstream"
	reasonDraining      = "draining"
	reasonInternal      = "internal"
)

// The error types of an OpenAI-shaped answer, as vLLM spells them.
const (
	typeBadRequest   = "BadRequestError"
	typeUnauthorized = "AuthenticationError"
	typePermission   = "PermissionDeniedError"
	typeRateLimit    = "RateLimitError"
	typeNotFound     = "NotFoundError"
	typeUnavailable  = "ServiceUnavailableError"
	typeInternal     = "InternalServerError"
	typeBadGateway   = "BadGatewayError"
	typeTimeout      = "GatewayTimeoutError"
	typeUnsupported  = "NotImplementedError"
)

// httpError is an error with an answer for the client. Msg, Param and Type are sent, Err is for the log only.
type httpError struct {
	Status     int           // the HTTP status, also the answer's "code" where Code is empty
	Type       string        // the answer's "type"; see the constants
	Msg        string        // the answer's "message"; cut to 1 KiB; no addresses, no tokens, no whole inputs
	Param      string        // the answer's "param"; "" becomes null
	Code       string        // the answer's "code" where it is a word and not the status
	Reason     string        // x-pdrouter-reason
	Close      bool          // the client's connection ends with this answer: its framing cannot be trusted
	NoRetry    bool          // x-should-retry: false
	RetryAfter time.Duration // retry-after-ms; 0: not sent
	Challenge  string        // www-authenticate; "": not sent
	Err        error         // the cause, for the log
	Subject    string        // whom the credentials name, for the log; "": nobody is known
	Tenant     string        // under whom the caller's use is counted, for the log; "": nobody is known
	Model      string        // for the log, where it is known who asked for it; one that is served, or the one that does not exist
}

// Error is what the log shows.
func (e *httpError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("router: %d %s: %s: %v", e.Status, e.Reason, e.Msg, e.Err)
	}
	return fmt.Sprintf("router: %d %s: %s", e.Status, e.Reason, e.Msg)
}

// Unwrap is the cause.
func (e *httpError) Unwrap() error { return e.Err }

// appendJSON appends the answer's body: {"error":{"message","type","param","code"}}.
func (e *httpError) appendJSON(dst []byte) []byte {
	msg := e.Msg
	if len(msg) > maxErrorMessage {
		msg = clip(msg, maxErrorMessage)
	}
	dst = append(dst, `{"error":{"message":`...)
	dst = appendString(dst, msg)
	dst = append(dst, `,"type":`...)
	dst = appendString(dst, e.Type)
	dst = append(dst, `,"param":`...)
	if e.Param == "" {
		dst = append(dst, "null"...)
	} else {
		dst = appendString(dst, e.Param)
	}
	dst = append(dst, `,"code":`...)
	if e.Code == "" {
		dst = strconv.AppendInt(dst, int64(e.Status), 10)
	} else {
		dst = appendString(dst, e.Code)
	}
	return append(dst, "}}"...)
}

// appendFrame appends the server-sent event that tells of the error once an answer has begun. What follows it is
// the cut of the connection, never data: [DONE].
func (e *httpError) appendFrame(dst []byte) []byte {
	dst = append(dst, "data: "...)
	dst = e.appendJSON(dst)
	return append(dst, "\n\n"...)
}

// clip cuts s to at most n bytes at the start of a rune, three dots included.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	end := n - len("...")
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "..."
}

// appendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendString(dst []byte, s string) []byte {
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

func errBadRequest(reason, param, format string, args ...any) *httpError {
	return &httpError{Status: http.StatusBadRequest, Type: typeBadRequest, Reason: reason, Param: param,
		Msg: fmt.Sprintf(format, args...), NoRetry: true}
}

func errFraming(format string, args ...any) *httpError {
	e := errBadRequest(reasonBadFraming, "", format, args...)
	e.Close = true
	return e
}

func errHeadTooLarge(format string, args ...any) *httpError {
	return &httpError{Status: http.StatusRequestHeaderFieldsTooLarge, Type: typeBadRequest, Reason: reasonHeadTooLarge,
		Msg: fmt.Sprintf(format, args...), NoRetry: true, Close: true}
}

func errTooLarge(limit int) *httpError {
	return &httpError{Status: http.StatusRequestEntityTooLarge, Type: typeBadRequest, Reason: reasonTooLarge,
		Msg: fmt.Sprintf("The request body is larger than %d bytes.", limit), NoRetry: true, Close: true}
}

func errNoRoute() *httpError {
	return &httpError{Status: http.StatusNotFound, Type: typeNotFound, Reason: reasonNoRoute, Msg: "Not Found", NoRetry: true}
}

func errMethod() *httpError {
	return &httpError{Status: http.StatusMethodNotAllowed, Type: typeBadRequest, Reason: reasonMethod,
		Msg: "Method Not Allowed", NoRetry: true}
}

func errUnsupported(what string) *httpError {
	return &httpError{Status: http.StatusNotImplemented, Type: typeUnsupported, Reason: reasonNoRoute,
		Msg: what + " is not supported.", NoRetry: true}
}

func errNoModel(model string) *httpError {
	return &httpError{Status: http.StatusNotFound, Type: typeNotFound, Reason: reasonNoModel, Param: "model",
		Msg: fmt.Sprintf("The model `%s` does not exist.", clip(model, 256)), NoRetry: true,
		Model: clip(model, 256), Err: errors.New("no such model")}
}

func errUnauthorized(cause error) *httpError {
	return &httpError{Status: http.StatusUnauthorized, Type: typeUnauthorized, Reason: reasonUnauthorized,
		Msg: "Unauthorized", NoRetry: true, Challenge: "Bearer", Err: cause}
}

// errNoKeys answers credentials that nobody can check at present.
func errNoKeys(reason string, cause error) *httpError {
	return &httpError{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Reason: reason,
		Msg: "Credentials cannot be checked at present.", RetryAfter: 5 * time.Second, Err: cause}
}

func errForbidden(cause error) *httpError {
	return &httpError{Status: http.StatusForbidden, Type: typePermission, Reason: reasonForbidden,
		Msg: "Forbidden", NoRetry: true, Err: cause}
}

func errNoEngine(reason, model string) *httpError {
	return &httpError{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Reason: reason,
		Msg: fmt.Sprintf("No engine is available for the model `%s`.", clip(model, 256)), RetryAfter: time.Second}
}

// errRetryBudget answers a request that failed for that reason, while too many others are tried again already. after is when the engines
// may be asked, 0 if they have not said.
func errRetryBudget(last reason, after time.Duration) *httpError {
	return &httpError{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Reason: whyRetryBudget.String(), NoRetry: true, RetryAfter: after,
		Msg: fmt.Sprintf("The engines failed the request (%s), and too many requests are being tried again.", last)}
}

func errDraining() *httpError {
	return &httpError{Status: http.StatusServiceUnavailable, Type: typeUnavailable, Reason: reasonDraining,
		Msg: "The server is shutting down.", RetryAfter: time.Second, Close: true}
}

func errBadUpstream(cause error) *httpError {
	return &httpError{Status: http.StatusBadGateway, Type: typeBadGateway, Reason: reasonBadUpstream,
		Msg: "The engine's answer could not be used.", Err: cause}
}

// errAnswerTooLarge answers a request whose answer exceeds a bound of the gateway's own: bound names it. Every engine's answer
// would be as large.
func errAnswerTooLarge(bound string) *httpError {
	return &httpError{Status: http.StatusBadGateway, Type: typeBadGateway, Reason: whyTooLarge.String(), NoRetry: true,
		Msg: "The engine's answer is too large for the gateway: " + bound + "."}
}

// isTooLarge reports whether an answer was not read because it, or one event of it, exceeds a bound.
func isTooLarge(err error) bool {
	return errors.Is(err, errAnswerSize) || errors.Is(err, sse.ErrTooLarge)
}

// boundOf returns the bound that an answer exceeds, and names it. isTooLarge(err) holds.
func boundOf(err error, l Limits) (bytes int, name string) {
	switch {
	case errors.Is(err, sse.ErrTooLarge):
		return l.Event, fmt.Sprintf("one event of more than %d bytes (limits.event)", l.Event)
	case errors.Is(err, errAnswerHead):
		return maxHead, fmt.Sprintf("header fields of more than %d bytes", maxHead)
	}
	return l.Answer, fmt.Sprintf("more than %d bytes (limits.answer)", l.Answer)
}

func errTimeout(phase string, cause error) *httpError {
	return &httpError{Status: http.StatusGatewayTimeout, Type: typeTimeout, Reason: reasonTimeout,
		Msg: fmt.Sprintf("The request timed out (%s).", phase), Err: cause}
}

func errInternal(cause error) *httpError {
	return &httpError{Status: http.StatusInternalServerError, Type: typeInternal, Reason: reasonInternal,
		Msg: "Internal server error", Err: cause}
}
