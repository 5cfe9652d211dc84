package client

import (
	"errors"
	"fmt"
)

// Bounds of what a client takes in from a stream of events.
const (
	maxEventLine = 4 << 10 // bytes of one line
	maxEventData = 8 << 10 // bytes of one event's data
)

// eventParser cuts server-sent events out of a stream, however its bytes come. The zero value is ready.
type eventParser struct {
	line []byte // not ended yet
	cr   bool   // the last byte ended a line as a CR: an LF after it belongs to it
	kind string
	data []byte
	some bool // data has a line
}

// feed takes the next bytes and calls each for every event that they complete. kind is "message" where the stream names
// none; data is valid during the call only.
func (p *eventParser) feed(b []byte, each func(kind string, data []byte) error) error {
	for _, c := range b {
		after := p.cr
		p.cr = c == '\r'
		switch {
		case c == '\n' && after:
			continue
		case c != '\n' && c != '\r':
			if len(p.line) >= maxEventLine {
				return fmt.Errorf("a line has more than %d bytes", maxEventLine)
			}
			p.line = append(p.line, c)
			continue
		}
		err := p.ended(each)
		p.line = p.line[:0]
		if err != nil {
			return err
		}
	}
	return nil
}

// ended takes the line, which is whole now.
func (p *eventParser) ended(each func(kind string, data []byte) error) error {
	if len(p.line) == 0 {
		kind, some := p.kind, p.some
		p.kind, p.some = "", false
		if !some {
			return nil
		}
		if kind == "" {
			kind = "message"
		}
		err := each(kind, p.data)
		p.data = p.data[:0]
		return err
	}
	field, value := cutField(p.line)
	switch field {
	case "event":
		p.kind = string(value)
	case "data":
		if len(p.data)+len(value) >= maxEventData {
			return errors.New("an event has too much data")
		}
		if p.some {
			p.data = append(p.data, '\n')
		}
		p.data, p.some = append(p.data, value...), true
	}
	return nil // a comment, or a field that says nothing here
}

// cutField cuts "field: value".
func cutField(line []byte) (string, []byte) {
	for i, c := range line {
		if c != ':' {
			continue
		}
		value := line[i+1:]
		if len(value) > 0 && value[0] == ' ' {
			value = value[1:]
		}
		return string(line[:i]), value
	}
	return string(line), nil
}
