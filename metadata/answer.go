package metadata

import (
	"encoding/json"
	"net/http"
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
