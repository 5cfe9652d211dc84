package routes

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"pdrouter/metadata"
)

// Close ends every watch at once and refuses new ones; other requests go on. A server calls it when it begins to shut
// down.
func (h *Handler) Close() { h.watches.close() }

// Watches returns what the watches do.
func (h *Handler) Watches() WatchStats { return h.watches.stats() }

// watch streams what changes about the engines that the caller may read, until the client leaves, its token is no longer
// taken, or Close.
func (h *Handler) watch(w http.ResponseWriter, r *http.Request) error {
	caller, err := h.auth.Authorize(r, Access{Action: List})
	if err != nil {
		return err
	}
	header := w.Header()
	if r.Method == http.MethodHead {
		header.Set("Content-Type", "text/event-stream")
		return nil
	}
	from, err := h.watches.join(watching(caller))
	if err != nil {
		return err
	}
	defer h.watches.leave(from)
	s := &stream{h: h, r: r, w: w, rc: http.NewResponseController(w)}
	_ = s.rc.SetReadDeadline(time.Time{}) // the server's bounds how long a request may take to come, not this answer
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // a proxy would hold events back
	header.Set("Connection", "close")     // the deadlines of this connection are the stream's
	s.line = append(s.line, ": open\n\n"...)
	if s.flush() != nil {
		return nil
	}
	alive := time.NewTicker(h.cfg.Watch.KeepAlive)
	defer alive.Stop()
	for {
		select {
		case <-r.Context().Done():
			return nil
		case <-from.ended:
			return nil
		case <-alive.C:
			if _, err := h.auth.Authorize(r, Access{Action: List}); err != nil {
				return nil // the client comes again with a fresh token
			}
			s.line = append(s.line, ": alive\n\n"...)
		case <-from.wake:
			if !s.take(from) {
				return nil
			}
		}
		if s.flush() != nil {
			return nil
		}
	}
}

// watching names whom the streams of one caller are counted under.
func watching(c Caller) string {
	if c.Engine == "" {
		return c.Subject
	}
	return fmt.Sprint(c.Engine, "\n", c.Ranks) // agents of one engine may share a subject or have one each
}

// stream is the answer to one watch.
type stream struct {
	h    *Handler
	r    *http.Request
	w    http.ResponseWriter
	rc   *http.ResponseController
	line []byte // not written yet
}

// take appends to line what the caller may be told. It returns false if the caller's credentials are no longer taken. What
// the caller may read is found out anew each time.
func (s *stream) take(from *watcher) bool {
	caller, err := s.h.auth.Authorize(s.r, Access{Action: List})
	if err != nil {
		return false
	}
	may := s.h.accessMany(s.r, caller)
	all, engines, before := from.take()
	if all {
		s.event(metadata.WatchEvent{Kind: metadata.WatchSync})
	}
	for _, engine := range engines {
		if ev := may.event(engine, before[engine]); ev.Kind != "" {
			s.event(ev)
		}
	}
	return true
}

// event returns what the caller may be told of an engine that has changed; nothing if it could not and cannot read it.
func (a *access) event(engine string, before seen) metadata.WatchEvent {
	recs, _, err := a.engine(engine, metadata.Rank{})
	switch {
	case err == nil && engine == a.caller.Engine && a.h.shapes.of(recs).whole:
		return metadata.WatchEvent{Kind: metadata.WatchSync} // an agent may read what pairs with its engine: that may be more now
	case err == nil:
		return metadata.WatchEvent{Kind: metadata.WatchPut, Incarnation: recs[0].Incarnation}
	case before.shape != nil && a.could(engine, before.shape):
		return metadata.WatchEvent{Kind: metadata.WatchDelete, Incarnation: before.inc}
	}
	return metadata.WatchEvent{}
}

// event appends an event to line.
func (s *stream) event(ev metadata.WatchEvent) {
	data := []byte("{}")
	if ev.Kind != metadata.WatchSync {
		data, _ = json.Marshal(ev.Incarnation) // a name and a number
	}
	s.line = append(append(append(append(append(s.line, "event: "...), ev.Kind...), "\ndata: "...), data...), "\n\n"...)
}

// flush writes line, within the time for one write.
func (s *stream) flush() error {
	if len(s.line) == 0 {
		return nil
	}
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.h.cfg.Watch.Write)) // a writer without deadlines has none to set
	_, err := s.w.Write(s.line)
	s.line = s.line[:0]
	if err != nil {
		return err
	}
	return s.rc.Flush()
}
