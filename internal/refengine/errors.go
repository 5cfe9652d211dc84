package refengine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// apiError is an answer that is no success, in the shape that OpenAI clients expect.
type apiError struct {
	Status  int
	Type    string
	Message string
	Param   string
	Code    string // "" is the status as a number
}

func (e *apiError) Error() string { return e.Message }

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{Status: http.StatusBadRequest, Type: "BadRequestError", Message: fmt.Sprintf(format, args...), Param: param}
}

// body is the JSON of the error.
func (e *apiError) body() []byte {
	var inner struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    any     `json:"code"`
	}
	inner.Message, inner.Type, inner.Code = e.Message, e.Type, e.Status
	if e.Param != "" {
		inner.Param = &e.Param
	}
	if e.Code != "" {
		inner.Code = e.Code
	}
	b, err := json.Marshal(map[string]any{"error": inner})
	if err != nil { // strings and numbers only
		return []byte(`{"error":{"message":"","type":"InternalServerError","param":null,"code":500}}`)
	}
	return b
}

// answerTo says what a client is told of an engine's error.
func answerTo(err error) *apiError {
	var api *apiError
	switch {
	case errors.As(err, &api):
		return api
	case errors.Is(err, ErrTooLong), errors.Is(err, ErrLeg):
		return badRequest("", "%v", err)
	case errors.Is(err, ErrTransferKnown):
		return &apiError{Status: http.StatusConflict, Type: "ConflictError", Message: err.Error(), Param: "kv_transfer_params"}
	case errors.Is(err, ErrTransfer):
		return &apiError{Status: http.StatusServiceUnavailable, Type: "ServiceUnavailableError", Message: err.Error(), Code: "transfer_failed"}
	case errors.Is(err, ErrStopping):
		return &apiError{Status: http.StatusServiceUnavailable, Type: "ServiceUnavailableError", Message: err.Error()}
	}
	return &apiError{Status: http.StatusInternalServerError, Type: "InternalServerError", Message: err.Error()}
}
