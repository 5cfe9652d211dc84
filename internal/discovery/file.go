package discovery

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// mostBytes bounds a watched file.
const mostBytes = 4 << 20

// File watches a file while Run runs. It is read whole at each look, and so whatever puts another in its place is seen: a
// write, a rename, a link that is set anew. It is safe for concurrent use.
type File struct {
	path  string
	every time.Duration
	read  func(path string, b []byte) error
	log   *slog.Logger

	last []byte // what was taken or refused last; nil if nothing could be read
	bad  error  // why it could not be used

	mu    sync.Mutex
	stats FileStats
}

// FileStats is how watching a file is doing.
type FileStats struct {
	Path     string
	Failures uint64    // times it was found changed and could not be used, or began not to be there
	Good     time.Time // when what is in use was last seen to be what it holds; zero before the first
	Bad      bool      // it cannot be used: what it held before is in use
}

// NewFile returns what watches a file, and has read take what it holds; 0 is 1s. A file that read refuses changes nothing.
// read must do so itself, and is called by Look and Run, one call after the other.
func NewFile(path string, every time.Duration, read func(path string, b []byte) error, log *slog.Logger) *File {
	if every == 0 {
		every = time.Second
	}
	return &File{path: path, every: every, read: read, log: log, stats: FileStats{Path: path}}
}

// Look reads the file and has it taken if it is another than before. It returns why it cannot be used. It must not be called
// while Run runs.
func (f *File) Look() error {
	b, err := contents(f.path)
	same := err == nil && f.last != nil && bytes.Equal(b, f.last)
	switch {
	case same:
		err = f.bad
	case err == nil:
		f.last = b
		err = f.read(f.path, b)
	default:
		f.last = nil // it is to be taken again if it comes back as it was
		same = f.bad != nil && f.bad.Error() == err.Error()
	}
	f.bad = err
	f.note(err, !same)
	return err
}

func contents(path string) ([]byte, error) {
	switch info, err := os.Stat(path); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular(): // the reading of a pipe may never end
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > mostBytes {
		return nil, fmt.Errorf("%s: more than %d bytes", path, mostBytes)
	}
	return b, nil
}

func (f *File) note(err error, news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Bad = err != nil
	if err == nil {
		f.stats.Good = time.Now()
	} else if news {
		f.stats.Failures++
	}
}

// Run looks at the file now and then until ctx ends.
func (f *File) Run(ctx context.Context) error {
	next := time.NewTimer(jittered(f.every))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		was := f.bad
		switch err := f.Look(); {
		case err != nil && (was == nil || err.Error() != was.Error()):
			f.log.Error("a file of engines cannot be used: what it held before is in use", "file", f.path, "err", err)
		case err == nil && was != nil:
			f.log.Info("a file of engines can be used again", "file", f.path)
		}
		next.Reset(jittered(f.every))
	}
}

// Stats returns how watching is doing.
func (f *File) Stats() FileStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}
