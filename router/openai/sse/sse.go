// Package sse cuts a stream of server-sent events into whole events and finds the data in one. What an event means is known to
// package openai.
package sse

import (
	"bytes"
	"errors"
	"fmt"
)

// ErrTooLarge is found by errors.Is in the error for an event that exceeds the bound.
var ErrTooLarge = errors.New("one server-sent event is too large")

var (
	dataField  = []byte("data:")
	eventField = []byte("event:")
)

// Lines end in LF or CRLF: no engine ends them in a lone CR, which within a line is kept like any other byte.

func trimCR(line []byte) []byte { return bytes.TrimSuffix(line, []byte{'\r'}) }

// dataOf is the value of a data line.
func dataOf(line []byte) ([]byte, bool) {
	v, ok := bytes.CutPrefix(line, dataField)
	if ok && len(v) > 0 && v[0] == ' ' {
		v = v[1:]
	}
	return v, ok
}

// Frames cuts a stream into whole events, each with the blank line that ends it, so that joined they are the
// stream to the byte. An event of more than max bytes is an error.
type Frames struct {
	Max  int // most bytes of one event
	buf  []byte
	from int   // events before it were returned
	ends []int // of the whole events after it
	last int   // where the event begins that has not ended
	line int   // where its last line begins
}

func NewFrames(max int) *Frames { return &Frames{Max: max} }

// Reset begins another stream in the same memory.
func (f *Frames) Reset(max int) { *f = Frames{Max: max, buf: f.buf[:0], ends: f.ends[:0]} }

// Size is how many bytes of memory it keeps.
func (f *Frames) Size() int { return cap(f.buf) }

// Unfinished returns the bytes of the event that has not ended.
func (f *Frames) Unfinished() []byte { return f.buf[f.last:] }

// Empty reports whether there is nothing in it: no event that was not returned, and none that has begun.
func (f *Frames) Empty() bool { return f.from == len(f.buf) }

// Push takes the next bytes of the stream; p is copied. Take all events with Next before: those returned earlier are
// overwritten. The error is ErrTooLarge.
func (f *Frames) Push(p []byte) error {
	if f.from > 0 {
		f.buf = f.buf[:copy(f.buf, f.buf[f.from:])]
		f.line -= f.from
		f.last -= f.from
		for i := range f.ends {
			f.ends[i] -= f.from
		}
		f.from = 0
	}
	look := len(f.buf)
	f.buf = append(f.buf, p...)
	for {
		i := bytes.IndexByte(f.buf[look:], '\n')
		if i < 0 {
			return f.bound(len(f.buf))
		}
		end := look + i + 1
		blank := len(trimCR(f.buf[f.line:end-1])) == 0
		f.line, look = end, end
		if !blank {
			continue
		}
		if err := f.bound(end); err != nil {
			return err
		}
		f.ends = append(f.ends, end)
		f.last = end
	}
}

func (f *Frames) bound(end int) error {
	if end-f.last > f.Max {
		return fmt.Errorf("more than %d bytes: %w", f.Max, ErrTooLarge)
	}
	return nil
}

// Next returns the next whole event, valid until the next Push.
func (f *Frames) Next() ([]byte, bool) {
	if len(f.ends) == 0 {
		return nil, false
	}
	end := f.ends[0]
	f.ends = f.ends[:copy(f.ends, f.ends[1:])]
	event := f.buf[f.from:end:end]
	f.from = end
	return event, true
}

// Type is the value of the event's last field of that name, nil if there is none.
func Type(event []byte) (name []byte) {
	for len(event) > 0 {
		line := event
		if i := bytes.IndexByte(event, '\n'); i >= 0 {
			line, event = event[:i], event[i+1:]
		} else {
			event = nil
		}
		if v, ok := bytes.CutPrefix(trimCR(line), eventField); ok {
			name = bytes.TrimPrefix(v, []byte{' '})
		}
	}
	return name
}

// Data returns the data of a whole event that has exactly one data line.
func Data(event []byte) ([]byte, bool) {
	start, end, n := DataSpan(event)
	return event[start:end], n == 1
}

// DataSpan is where the value of the event's first data line lies, and how many data lines there are.
func DataSpan(event []byte) (start, end, n int) {
	for at := 0; at < len(event); {
		next := len(event)
		stop := next
		if i := bytes.IndexByte(event[at:], '\n'); i >= 0 {
			stop, next = at+i, at+i+1
		}
		line := trimCR(event[at:stop])
		if v, ok := dataOf(line); ok {
			if n++; n == 1 {
				end = at + len(line)
				start = end - len(v)
			}
		}
		at = next
	}
	return start, end, n
}
