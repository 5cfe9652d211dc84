package vllm

import (
	"errors"

	"pdrouter/internal/zmtp"
)

// maxAnswer bounds the bytes of one answer, all its frames together.
const maxAnswer = 1 << 20

// request sends a short message as a REQ socket does, and returns the parts of the answer, at least one. They hold until the next request.
func request(c *zmtp.Conn, body []byte) ([][]byte, error) {
	if err := c.Send(nil, body); err != nil { // an empty frame stands before the message
		return nil, err
	}
	parts, err := c.Receive(maxAnswer)
	if err != nil {
		return nil, err
	}
	if len(parts) < 2 || len(parts[0]) != 0 {
		return nil, errors.New("no answer to a request")
	}
	return parts[1:], nil
}
