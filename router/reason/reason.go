// Package reason has every reason for which a request is refused or fails: its name, its status, and what it tells a client about
// trying again. It is a leaf: who meets a reason chooses the message.
package reason

import "time"

// Reason says why a request was refused or failed. Its String is the value of X-Pdrouter-Reason, of the log and of the
// metrics. Clients and dashboards depend on it: a name is never reused for something else.
type Reason uint8

// The reasons; table says what each means. A request that did not fail has None.
const (
	None Reason = iota

	BadFraming
	BadHost
	HeadTooLarge
	TooManyConnections
	Timeout
	NoRoute
	Unsupported
	Method
	Unauthorized
	Forbidden
	NoKeys
	JWKSStale
	ContentType
	BodyTooLarge
	BodyMemory
	BadJSON
	DuplicateKey
	BadForm
	BadField
	OverCap
	TransferParams
	MediaHost
	MissingModel
	UnknownModel
	UnknownResponse
	ResponseEngineGone
	ResponsesUnknown
	OverLimitRequests
	OverLimitTokens
	OverLimitConcurrent
	OverLimitTenants
	TooManyBackground
	QueueFull
	QueueTimeout
	Objective
	Draining
	Internal

	NoEngine
	NoPrefill
	NoPair
	PairFailed
	EngineRefused
	EngineRestarted
	RetryBudget
	PrefillFailed
	DecodeFailed
	NoTransferParams
	BadUpstream
	CredentialsRefused
	AnswerTooLarge
	StreamCut
	PrefillTimeout
	TransferTimeout
	Deadline
	PrefillRejected
	DecodeRejected
	EngineRejected
	ClientLeft
	SlowClient
	Shutdown
	Panic
	Branch
)

// EngineStatus stands for the 4xx of an engine, which the client gets as it is.
const EngineStatus = 0

// What an answer says about trying again: noRetry (X-Should-Retry: false), nothing (0), or the shortest time to wait (Retry-After).
const noRetry time.Duration = -1

// hangUp has an error answer close the client's connection: what follows on it cannot be trusted, or is not wanted.
const hangUp = true

// table says everything about a reason that is the same for every request. docs/errors.md is written from it.
var table = [...]struct {
	name   string
	status int
	retry  time.Duration
	close  bool
	means  string
}{
	None: {},

	BadFraming:          {"bad_framing", 400, noRetry, hangUp, "The request's framing or a header field is invalid or ambiguous; `Host` is missing, given twice or no host."},
	BadHost:             {"bad_host", 400, noRetry, hangUp, "The `Host` field is not the host that the request target names, or is no host."},
	HeadTooLarge:        {"head_too_large", 431, noRetry, hangUp, "The request's head is larger than 16 KiB or has more than 100 fields."},
	TooManyConnections:  {"too_many_connections", 503, 0, hangUp, "`limits.concurrent` client connections are open already. A client with TLS gets no answer."},
	Timeout:             {"timeout", 408, noRetry, hangUp, "The request did not arrive completely within `timeouts.read`."},
	NoRoute:             {"no_route", 404, noRetry, false, "There is no such route."},
	Unsupported:         {"no_route", 501, noRetry, false, "`/v1/realtime` is not supported."},
	Method:              {"method", 405, noRetry, false, "The route exists for another method."},
	Unauthorized:        {"unauthorized", 401, noRetry, false, "The credentials are missing or invalid. The log says why."},
	Forbidden:           {"forbidden", 403, noRetry, false, "The caller may not use the route or the model. The log says why."},
	NoKeys:              {"no_keys", 503, 5 * time.Second, false, "Credentials cannot be checked at present."},
	JWKSStale:           {"jwks_stale", 503, 5 * time.Second, false, "The issuer's keys are too old to be trusted, so tokens cannot be checked."},
	ContentType:         {"content_type", 400, noRetry, false, "The body does not have the route's content type, or has a content encoding."},
	BodyTooLarge:        {"body_too_large", 413, noRetry, hangUp, "The body is larger than `limits.body`, or than 4 KiB on a route without a body."},
	BodyMemory:          {"body_memory", 503, time.Second, hangUp, "The bodies of all requests, with their copies for engines, would exceed `limits.body_memory`, or those of one tenant half of it."},
	BadJSON:             {"bad_json", 400, noRetry, false, "The body is not a JSON object, or has more than 64 levels or 1,048,576 keys."},
	DuplicateKey:        {"duplicate_key", 400, noRetry, false, "An object of the body has the same key twice."},
	BadForm:             {"bad_form", 400, noRetry, false, "The body is not a valid form."},
	BadField:            {"bad_field", 400, noRetry, false, "A field has the wrong type or value, or the model does not support it. `param` names the field."},
	OverCap:             {"over_cap", 400, noRetry, false, "A field exceeds a [bound](api.md#bodies). `param` names the field."},
	TransferParams:      {"transfer_params", 400, noRetry, false, "The request has KV transfer parameters of its own, and `strict` is true or they are inside a form's object."},
	MediaHost:           {"media_host", 400, noRetry, false, "A media URL names a host that engines must not be sent to ([security.md](security.md#media))."},
	MissingModel:        {"unknown_model", 400, noRetry, false, "The request names no model."},
	UnknownModel:        {"unknown_model", 404, noRetry, false, "No such model is served."},
	UnknownResponse:     {"unknown_response", 404, noRetry, false, "There is no such stored response of this caller."},
	ResponseEngineGone:  {"response_engine_gone", 404, noRetry, false, "The engine that stored the response has been removed."},
	ResponsesUnknown:    {"responses_unknown", 503, time.Second, false, "Redis cannot be asked which engine stores the response."},
	OverLimitRequests:   {"over_limit_requests", 429, time.Millisecond, false, "The tenant has exceeded its requests per minute."},
	OverLimitTokens:     {"over_limit_tokens", 429, time.Millisecond, false, "The tenant has exceeded its tokens per minute."},
	OverLimitConcurrent: {"over_limit_concurrent", 429, time.Millisecond, false, "The tenant has too many concurrent requests."},
	OverLimitTenants:    {"over_limit_tenants", 429, time.Millisecond, false, "More tenants are active than limits can be tracked for."},
	TooManyBackground:   {"too_many_background", 503, 30 * time.Second, false, "`limits.background` background responses are in progress."},
	QueueFull:           {"queue_full", 503, time.Second, false, "Too many requests are queued for the model."},
	QueueTimeout:        {"queue_timeout", 503, time.Second, false, "The request waited too long for a place with the model's engines, or for an engine to come back."},
	Objective:           {"objective", 429, time.Second, false, "With `queue.by_objective`: the request has waited for a place so long that it cannot keep its objective any more. `Retry-After` says when engines are thought to have room for it."},
	Draining:            {"draining", 503, time.Second, hangUp, "The gateway is shutting down."},
	Internal:            {"internal", 500, 0, false, "The gateway has a bug. The log has the details."},

	NoEngine:           {"no_engine", 503, time.Second, false, "No engine of the model can be used."},
	NoPrefill:          {"no_prefill", 503, time.Second, false, "No prefill engine can be used, and the policy forbids serving by decode alone."},
	NoPair:             {"no_pair", 503, time.Second, false, "No prefill engine fits a usable decode engine, and the policy forbids serving by decode alone."},
	PairFailed:         {"pair_failed", 503, time.Second, false, "The handshake between the two engines did not succeed in time."},
	EngineRefused:      {"engine_refused", 503, time.Second, false, "Engines refused the request: 429, 503, or no connection."},
	EngineRestarted:    {"engine_restarted", 503, time.Second, false, "The prefill engine restarted during the request."},
	RetryBudget:        {"retry_budget", 503, noRetry, false, "Engines failed the request, and too many requests are being retried already."},
	PrefillFailed:      {"prefill_failed", 502, 0, false, "The prefill engine failed."},
	DecodeFailed:       {"decode_failed", 502, 0, false, "The decode engine failed."},
	NoTransferParams:   {"no_transfer_params", 502, 0, false, "The prefill engine's answer has no KV transfer parameters, and decode did not serve alone."},
	BadUpstream:        {"bad_upstream", 502, 0, false, "An engine's answer could not be used."},
	CredentialsRefused: {"credentials_refused", 502, 0, false, "An engine answered 401 or 403: it refused the gateway's credentials."},
	AnswerTooLarge:     {"answer_too_large", 502, noRetry, false, "The answer exceeds `limits.answer`, `limits.event`, or 64 KiB of header fields."},
	StreamCut:          {"stream_cut", 502, 0, false, "In the stream's error event and the log: the stream broke after its first byte, and no other engine continued it."},
	PrefillTimeout:     {"prefill_timeout", 504, 0, false, "The prefill engine did not answer within `timeouts.prefill`."},
	TransferTimeout:    {"transfer_timeout", 504, 0, false, "The KV transfer did not complete within `timeouts.transfer`."},
	Deadline:           {"deadline", 504, 0, false, "The request exceeded `timeouts.request` or `timeouts.request_total`."},
	PrefillRejected:    {"prefill_rejected", EngineStatus, noRetry, false, "The prefill engine rejected the request."},
	DecodeRejected:     {"decode_rejected", EngineStatus, noRetry, false, "The decode engine rejected the request."},
	EngineRejected:     {"engine_rejected", EngineStatus, noRetry, false, "The engine of a route that is passed to one engine rejected the request. The outcome is `completed`."},
	ClientLeft:         {"client_left", 499, 0, hangUp, "In the log: the client closed the connection."},
	SlowClient:         {"slow_client", 499, 0, hangUp, "In the log: the client did not read for `timeouts.write`."},
	Shutdown:           {"shutdown", 503, time.Second, hangUp, "In the log: the request did not end within the drain time. The client gets `draining`."},
	Panic:              {"panic", 500, 0, false, "In the log: the gateway has a bug. The client gets `internal`."},
	Branch:             {"branch", 499, 0, hangUp, "In `/requests`, of one choice: another choice of the request failed, or its client left."},
}

func (r Reason) String() string { return table[r].name }

// Status is the HTTP status of an answer for the reason; EngineStatus if it is the engine's.
func (r Reason) Status() int { return table[r].status }

// Retry reports whether the client may try again, and the shortest time to wait; 0 says nothing of it.
func (r Reason) Retry() (may bool, after time.Duration) {
	return table[r].retry != noRetry, max(0, table[r].retry)
}

// Close reports whether the answer closes the client's connection.
func (r Reason) Close() bool { return table[r].close }

// Count is how many reasons there are.
const Count = len(table)
