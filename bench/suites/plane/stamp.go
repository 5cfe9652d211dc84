package plane

import (
	"sync"
	"sync/atomic"
	"time"

	"pdrouter/kvplane"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/nixltransport"
	"pdrouter/kvplane/transport/tcp"
)

// stamp is when the transport last handed something to its agent, and what the agent has posted since somebody took that.
type stamp struct {
	start time.Time
	at    atomic.Int64 // ns since start

	mu    sync.Mutex
	posts []planePost
}

// planePost is one write that an agent has given to its transport.
type planePost struct {
	began int64         // ns since 1970: what another process of this machine compares its own clock with
	took  time.Duration // made and posted
	since time.Duration // from what the transport had handed over last until it was posted
}

func (s *stamp) mark(before, after int) {
	if after > before {
		s.at.Store(time.Since(s.start).Nanoseconds())
	}
}

// since is how long ago something was handed over.
func (s *stamp) since() time.Duration { return time.Since(s.start) - time.Duration(s.at.Load()) }

// posted notes a write that began then.
func (s *stamp) posted(began time.Time) {
	p := planePost{began: began.UnixNano(), took: time.Since(began), since: s.since()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posts = append(s.posts, p)
}

// take returns what was posted since it was called last.
func (s *stamp) take() []planePost {
	s.mu.Lock()
	defer s.mu.Unlock()
	posts := s.posts
	s.posts = nil
	return posts
}

// stampedNIXL and stampedTCP are the transports, and say when they took something in and what was posted.
type stampedNIXL struct {
	*nixltransport.Transport
	stamp *stamp
}

// Poll implements transport.Transport.
func (t *stampedNIXL) Poll(out []transport.Incoming) []transport.Incoming {
	before := len(out)
	out = t.Transport.Poll(out)
	t.stamp.mark(before, len(out))
	return out
}

// Write implements transport.Transport.
func (t *stampedNIXL) Write(agent string, id uint64, ranges []kvplane.Range, notify []byte) error {
	defer t.stamp.posted(time.Now())
	return t.Transport.Write(agent, id, ranges, notify)
}

// WritePrepared implements transport.Preparer.
func (t *stampedNIXL) WritePrepared(agent string, id uint64, local, remote []int32, notify []byte) error {
	defer t.stamp.posted(time.Now())
	return t.Transport.WritePrepared(agent, id, local, remote, notify)
}

type stampedTCP struct {
	*tcp.Transport
	stamp *stamp
}

// Poll implements transport.Transport.
func (t *stampedTCP) Poll(out []transport.Incoming) []transport.Incoming {
	before := len(out)
	out = t.Transport.Poll(out)
	t.stamp.mark(before, len(out))
	return out
}

// Write implements transport.Transport.
func (t *stampedTCP) Write(agent string, id uint64, ranges []kvplane.Range, notify []byte) error {
	defer t.stamp.posted(time.Now())
	return t.Transport.Write(agent, id, ranges, notify)
}
