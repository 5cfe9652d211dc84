package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"pdrouter/internal/refusal"
	"pdrouter/kvplane/transfer"
)

const (
	eventsBuffer   = 1024             // events that may wait for one subscriber
	eventsInterval = 15 * time.Second // longest silence on a stream: a comment says that it still stands
	maxWhy         = 1 << 10          // bytes of a cancel's body
)

// NewServer returns a server for Handler's routes. It bounds how long a request may take to come: who sends one slowly, or nothing, does not hold a
// connection. ctx is the base of each request's context.
func NewServer(ctx context.Context, h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		IdleTimeout:       time.Minute,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// Handler serves GET /kvplane/v1/events, a stream of Events, and POST
// /kvplane/v1/transfers/{id}/cancel, whose body may say why. authorize refuses a request by returning an error, which
// decides the answer and is one line in the log, as refusal.Answer has it; cancel must not block. Who may open a stream
// may read it to its end, which is the request's: to shut down, cancel the server's base context.
func Handler(
	events *Broadcaster, cancel func(id transfer.ID, why string), authorize func(r *http.Request) error, log *slog.Logger,
) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, serve func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			err := authorize(r)
			if err == nil {
				err = serve(w, r)
			}
			if err != nil {
				refusal.Answer(w, r, "control", err, log)
			}
		})
	}
	handle("GET /kvplane/v1/events", func(w http.ResponseWriter, r *http.Request) error {
		serveEvents(w, r, events)
		return nil
	})
	handle("POST /kvplane/v1/transfers/{id}/cancel", func(w http.ResponseWriter, r *http.Request) error {
		id, err := transfer.ParseID(r.PathValue("id"))
		if err != nil {
			return &refusal.Error{Status: http.StatusBadRequest, Reason: "bad_transfer", Msg: err.Error()}
		}
		why, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxWhy))
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			return &refusal.Error{Status: http.StatusRequestEntityTooLarge, Reason: "too_large", Msg: fmt.Sprintf("reason has more than %d bytes", maxWhy)}
		case err != nil:
			return &refusal.Error{Status: http.StatusBadRequest, Reason: "body", Msg: "the body ended early"}
		}
		cancel(id, string(why))
		w.WriteHeader(http.StatusAccepted)
		return nil
	})
	return mux
}

// serveEvents streams until the client leaves, the server closes, or the stream cannot be written.
func serveEvents(w http.ResponseWriter, r *http.Request, events *Broadcaster) {
	feed, end := events.Subscribe(eventsBuffer)
	defer end()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Connection", "close") // the write deadline of this connection is the stream's
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{}) // the server's is for requests
	alive := time.NewTicker(eventsInterval)
	defer alive.Stop()
	line := []byte(": open\n\n")
	for {
		_ = rc.SetWriteDeadline(time.Now().Add(eventsInterval)) // a writer without deadlines has none to set
		if _, err := w.Write(line); err != nil {
			return
		}
		if len(feed) == 0 {
			if err := rc.Flush(); err != nil {
				return
			}
		}
		select {
		case ev := <-feed:
			b, err := json.Marshal(ev)
			if err != nil {
				return // a Event can always be encoded
			}
			line = append(append(append(line[:0], "data: "...), b...), "\n\n"...)
		case <-alive.C:
			line = append(line[:0], ": alive\n\n"...)
		case <-r.Context().Done():
			return
		}
	}
}
