package main

import (
	"io"
	"sync"
	"time"
)

const (
	gatherFor  = 2 * time.Millisecond // the longest that a line waits for others
	gatherMost = 32 << 10             // bytes that are written at once, nearly
)

// gathered writes several lines at once where many come within a moment. It is safe for concurrent use.
//
// What an orderly end leaves is written by flush. A process that is killed, or ends by a panic that nobody recovers, loses the
// lines of its last gatherFor that were told to wait, which only those of requests are.
type gathered struct {
	out   sync.Mutex // held while lines are written, so that they stay in order; taken before mu
	to    io.Writer
	spare []byte // room for the lines behind those in lines

	mu    sync.Mutex
	lines []byte
	timer *time.Timer // set while there are lines that wait; nil before the first
	waits bool        // it is set
}

// Write writes a line at once, behind those that wait.
func (g *gathered) Write(line []byte) (int, error) {
	g.mu.Lock()
	g.lines = append(g.lines, line...)
	g.mu.Unlock()
	return len(line), g.flush()
}

// later writes a line soon. It only waits if a writer that takes none has filled the room.
func (g *gathered) later(line []byte) {
	g.mu.Lock()
	g.lines = append(g.lines, line...)
	full := len(g.lines) >= gatherMost
	switch {
	case full || g.waits:
	case g.timer == nil:
		g.waits, g.timer = true, time.AfterFunc(gatherFor, func() { _ = g.flush() }) // there is nobody to tell
	default:
		g.waits = true
		g.timer.Reset(gatherFor)
	}
	g.mu.Unlock()
	if full {
		_ = g.flush()
	}
}

// flush writes all lines that wait.
func (g *gathered) flush() error {
	g.out.Lock()
	defer g.out.Unlock()
	g.mu.Lock()
	lines := g.lines
	g.lines, g.waits = g.spare, false
	g.mu.Unlock()
	g.spare = lines[:0]
	if len(lines) == 0 {
		return nil
	}
	_, err := g.to.Write(lines)
	return err
}
