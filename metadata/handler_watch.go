package metadata

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"
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
	from, err := h.watches.join()
	if err != nil {
		return err
	}
	defer h.watches.leave(from)
	s := &stream{h: h, r: r, own: caller.Engine, renewals: r.URL.Query().Get("renewals") == "1", w: w, rc: http.NewResponseController(w)}
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

// stream is the answer to one watch.
type stream struct {
	h        *Handler
	r        *http.Request
	own      string // the caller's engine, if it is an agent
	renewals bool
	w        http.ResponseWriter
	rc       *http.ResponseController
	events   []watchEvent
	line     []byte // not written yet
}

// take appends to line what the caller may be told. It returns false if the caller may not be told anything any more.
func (s *stream) take(from *watcher) bool {
	s.events = from.take(s.events[:0])
	for i := range s.events {
		ev := &s.events[i]
		if ev.kind == watchRenew && !s.renewals {
			continue
		}
		data := []byte("{}")
		if ev.kind == watchPut && ev.inc.Engine == s.own {
			if _, err := complete(ev.recs); err == nil {
				ev.kind = watchSync // an agent may read what pairs with its engine: that may be more now
			}
		}
		if ev.kind != watchSync {
			ok, ended := s.h.tellable(s.r, *ev)
			if ended {
				return false
			}
			if !ok {
				continue
			}
			var err error
			if data, err = json.Marshal(watchData{ev.inc, ev.rank.String()}); err != nil {
				return false
			}
		}
		s.line = append(append(append(append(append(s.line, "event: "...), ev.kind...), "\ndata: "...), data...), "\n\n"...)
	}
	clear(s.events) // the records
	return true
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

// tellable reports whether the caller may be told of the event, as readable decides about the records that it is about, and
// whether the caller's credentials have ended.
func (h *Handler) tellable(r *http.Request, ev watchEvent) (ok, ended bool) {
	judge := *h
	judge.store = judged{Store: h.store, event: ev, hub: h.watches}
	_, err := judge.readable(r, ev.inc.Engine, Rank{})
	var no refused
	return err == nil, errors.As(err, &no) && no.HTTPStatus() == http.StatusUnauthorized
}

// judged is the store as a judgement of an event sees it: with the records that the event is about, and without an exchange
// for others that are known.
type judged struct {
	Store
	event watchEvent
	hub   *watchHub
}

// Engine implements Store.
func (s judged) Engine(ctx context.Context, name string) ([]Record, error) {
	if name == s.event.inc.Engine {
		return s.event.recs, nil
	}
	if recs, ok := s.hub.Engine(name); ok {
		return recs, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.hub.cfg.Store)
	defer cancel()
	return s.Store.Engine(ctx, name)
}
