package router

import "errors"

// errEventTooLarge is returned for an event that exceeds the bound.
var errEventTooLarge = errors.New("router: server-sent event is too large")

// eventKind is what one whole event carries.
type eventKind uint8

const (
	eventComment eventKind = iota // no data: keep-alives
	eventData                     // data of any kind but the two below
	eventError                    // data with a top-level "error"
	eventDone                     // data: [DONE], and nothing else
)

// sseEnd finds the terminal event of a stream, data: [DONE], however its bytes are cut. The zero value is ready.
// It keeps no bytes of the stream.
type sseEnd struct{ seen bool }

// Write takes the next bytes of the stream. It never fails.
func (e *sseEnd) Write(p []byte) {}

// Seen reports that the terminal event was read to its end.
func (e *sseEnd) Seen() bool { return e.seen }

// sseFrames cuts a stream into whole events, each with the blank line that ends it, so that joined they are the
// stream to the byte. An event of more than max bytes is an error.
type sseFrames struct {
	max int
}

func newSSEFrames(max int) *sseFrames { return &sseFrames{max: max} }

// Push takes the next bytes of the stream; p is copied. Events returned before are overwritten.
func (f *sseFrames) Push(p []byte) error { return nil }

// Next returns the next whole event, valid until the next Push.
func (f *sseFrames) Next() ([]byte, bool) { return nil, false }

// Rest is what was read of an event that has not ended.
func (f *sseFrames) Rest() []byte { return nil }

// kindOf says what a whole event carries.
func kindOf(event []byte) eventKind { return eventData }

// eventPayload returns the data of a whole event that has exactly one data line.
func eventPayload(event []byte) ([]byte, bool) { return nil, false }
