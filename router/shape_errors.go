package router

import (
	"slices"
	"strconv"
)

// appendError appends the body of an error answer.
func (s shape) appendError(dst []byte, e *httpError) []byte {
	if s != shapeMessages {
		return e.appendJSON(dst)
	}
	dst = append(dst, `{"type":"error","error":{"type":`...)
	dst = appendString(dst, e.Type)
	dst = append(dst, `,"message":`...)
	dst = appendString(dst, clip(e.Msg, maxErrorMessage))
	return append(dst, "}}"...)
}

// appendErrorEvent appends the server-sent event that tells of the error once an answer has begun, as the event with that
// number. What follows it is the cut of the connection, never the terminal event.
func (s shape) appendErrorEvent(dst []byte, e *httpError, number int) []byte {
	switch s {
	case shapeMessages:
		dst = append(dst, "event: error\ndata: "...)
		dst = s.appendError(dst, e)
	case shapeResponses: // clients differ in where they look: what is within error is said again outside of it
		dst = append(dst, "event: error\ndata: {\"type\":\"error\",\"sequence_number\":"...)
		dst = strconv.AppendInt(dst, int64(number), 10)
		dst = append(dst, `,"code":`...)
		dst = appendString(dst, e.Reason.String())
		dst = append(dst, `,"message":`...)
		dst = appendString(dst, clip(e.Msg, maxErrorMessage))
		dst = append(dst, `,"param":null,`...)
		at := len(dst)
		dst = slices.Delete(e.appendJSON(dst), at, at+1) // its brace
	default:
		return e.appendFrame(dst)
	}
	return append(dst, "\n\n"...)
}
