package leg

import (
	"errors"
	"fmt"

	"pdrouter/router/config"
	"pdrouter/router/openai/sse"
	"pdrouter/router/upstream"
)

// IsTooLarge reports whether an answer was not read because it, or one event of it, exceeds a bound.
func IsTooLarge(err error) bool {
	return errors.Is(err, upstream.ErrTooLarge) || errors.Is(err, sse.ErrTooLarge)
}

// ExceededBound returns the bound that an answer exceeds, and names it. IsTooLarge(err) holds.
func ExceededBound(err error, l config.Limits) (bytes int, name string) {
	switch {
	case errors.Is(err, sse.ErrTooLarge):
		return l.Event, fmt.Sprintf("one event of more than %d bytes (limits.event)", l.Event)
	case errors.Is(err, upstream.ErrHeadTooLarge):
		return upstream.MaxHead, fmt.Sprintf("header fields of more than %d bytes", upstream.MaxHead)
	}
	return l.Answer, fmt.Sprintf("more than %d bytes (limits.answer)", l.Answer)
}
