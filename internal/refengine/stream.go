package refengine

import (
	"encoding/json"
	"errors"
	"io"
)

var errCut = errors.New("refengine: answer cut on purpose")

// stream is the body of a streamed answer: the choices one after the other, each token an event as it comes.
// It is read by one goroutine. It has no Close: CloseWithError says how it ended.
type stream struct {
	engine *Engine
	answer *answer
	gone   <-chan struct{}

	at      int     // the choice under way
	first   *Output // taken already, to know that there is an answer
	started bool    // the choice under way has had an event
	cut     int     // tokens until the answer is cut on purpose; -1: never
	buf     []byte
	over    bool
	events  int // that have a type, so far
}

// newStream waits for the first output of the call, so that a call without an answer is still told by its status.
func newStream(e *Engine, a *answer, gone <-chan struct{}) (*stream, error) {
	s := &stream{engine: e, answer: a, gone: gone, cut: -1}
	if f, ok := find(a.choices[0].seq.faults, Cut); ok {
		s.cut = f.After
	}
	o, err := await(a.choices[0].seq, gone)
	if err != nil {
		a.cancel(e)
		return nil, err
	}
	s.first = &o
	return s, nil
}

// await returns the next output of a sequence, or an error if it ends without an answer or the client leaves.
func await(s *Sequence, gone <-chan struct{}) (Output, error) {
	select {
	case o := <-s.Outputs():
		return o, o.Err
	case <-gone:
		return Output{}, ErrLeft
	}
}

// Read waits for the next event.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.buf) == 0 {
		if s.over {
			return 0, io.EOF
		}
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.buf)
	s.buf = s.buf[n:]
	return n, nil
}

// CloseWithError ends what still runs for the answer.
func (s *stream) CloseWithError(error) error {
	s.answer.cancel(s.engine)
	return nil
}

// next appends the events of one output.
func (s *stream) next() error {
	c := s.answer.choices[s.at]
	o, err := s.output(c)
	if errors.Is(err, ErrLeft) {
		return err
	}
	if err != nil {
		s.broke(answerTo(err))
		return nil
	}
	if s.cut == 0 {
		return errCut
	}
	s.cut--
	ended, cancel := c.take(o)
	if cancel {
		s.engine.Cancel(c.seq)
	}
	if s.answer.call.dialect > speaksChat {
		s.speak(c, !s.started, ended)
	} else if err := s.chunk(c); err != nil {
		return err
	}
	s.started = true
	if !ended {
		return nil
	}
	s.at, s.started = s.at+1, false
	if s.at < len(s.answer.choices) {
		return nil
	}
	if s.answer.call.dialect > speaksChat {
		s.ends()
		return nil
	}
	if s.answer.call.usage {
		b, err := s.answer.last()
		if err != nil {
			return err
		}
		s.event(b)
	}
	s.done()
	return nil
}

// chunk appends the event of one output.
func (s *stream) chunk(c *choice) error {
	b, err := s.answer.chunk(c, !s.started)
	if err == nil {
		s.event(b)
	}
	return err
}

func (s *stream) output(c *choice) (Output, error) {
	if s.first != nil {
		o := *s.first
		s.first = nil
		return o, nil
	}
	return await(c.seq, s.gone)
}

func (s *stream) event(b json.RawMessage) {
	s.buf = append(append(append(s.buf, "data: "...), b...), "\n\n"...)
}

func (s *stream) done() {
	s.buf = append(s.buf, "data: [DONE]\n\n"...)
	s.over = true
}
