package telemetry

import (
	"io"
	"sync"
	"time"
)

const (
	waitFor     = 2 * time.Millisecond // the longest that a line waits for others
	maxBuffered = 32 << 10             // bytes that are written at once, nearly
)

// bufferedWriter writes several lines at once where many come within a moment. It is safe for concurrent use.
//
// What an orderly end leaves is written by flush. A process that is killed, or ends by a panic that nobody recovers, loses the
// lines of its last waitFor that were told to wait, which only those of requests are.
type bufferedWriter struct {
	out   sync.Mutex // held while lines are written, so that they stay in order; taken before mu
	to    io.Writer
	spare []byte // room for the lines behind those in lines

	mu    sync.Mutex
	lines []byte
	timer *time.Timer // set while there are lines that wait; nil before the first
	waits bool        // it is set
}

// Write writes a line at once, behind those that wait.
func (w *bufferedWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	w.lines = append(w.lines, line...)
	w.mu.Unlock()
	return len(line), w.flush()
}

// later writes a line soon. It only waits if a writer that takes none has filled the room.
func (w *bufferedWriter) later(line []byte) {
	w.mu.Lock()
	w.lines = append(w.lines, line...)
	full := len(w.lines) >= maxBuffered
	switch {
	case full || w.waits:
	case w.timer == nil:
		w.waits, w.timer = true, time.AfterFunc(waitFor, func() { _ = w.flush() }) // there is nobody to tell
	default:
		w.waits = true
		w.timer.Reset(waitFor)
	}
	w.mu.Unlock()
	if full {
		_ = w.flush()
	}
}

// flush writes all lines that wait.
func (w *bufferedWriter) flush() error {
	w.out.Lock()
	defer w.out.Unlock()
	w.mu.Lock()
	lines := w.lines
	w.lines, w.waits = w.spare, false
	w.mu.Unlock()
	w.spare = lines[:0]
	if len(lines) == 0 {
		return nil
	}
	_, err := w.to.Write(lines)
	return err
}
