package openai

import (
	"slices"
	"strconv"

	"pdrouter/router/openai/answer"
)

// AppendError appends the body of an error answer.
func (s Shape) AppendError(dst []byte, e *Error) []byte {
	if s != ShapeMessages {
		return e.AppendJSON(dst)
	}
	dst = append(dst, `{"type":"error","error":{"type":`...)
	dst = AppendString(dst, e.Type)
	dst = append(dst, `,"message":`...)
	dst = AppendString(dst, Clip(e.Msg, answer.MaxErrorMessage))
	return append(dst, "}}"...)
}

// AppendErrorEvent appends the server-sent event that tells of the error once an answer has begun, as the event with that
// number. What follows it is the cut of the connection, never the terminal event.
func (s Shape) AppendErrorEvent(dst []byte, e *Error, number int) []byte {
	switch s {
	case ShapeMessages:
		dst = append(dst, "event: error\ndata: "...)
		dst = s.AppendError(dst, e)
	case ShapeResponses: // clients differ in where they look: what is within error is said again outside of it
		dst = append(dst, "event: error\ndata: {\"type\":\"error\",\"sequence_number\":"...)
		dst = strconv.AppendInt(dst, int64(number), 10)
		dst = append(dst, `,"code":`...)
		dst = AppendString(dst, e.Reason.String())
		dst = append(dst, `,"message":`...)
		dst = AppendString(dst, Clip(e.Msg, answer.MaxErrorMessage))
		dst = append(dst, `,"param":null,`...)
		at := len(dst)
		dst = slices.Delete(e.AppendJSON(dst), at, at+1) // its brace
	default:
		return e.AppendFrame(dst)
	}
	return append(dst, "\n\n"...)
}
