package kvplane

import (
	"encoding/json"
	"io"
	"net/http"
	"time"
)

const (
	eventsBuffer   = 1024             // events that may wait for one subscriber
	eventsInterval = 15 * time.Second // longest silence on a stream: a comment says that it still stands
	maxWhy         = 1 << 10          // bytes of a cancel's body
)

// ControlHandler serves GET /kvplane/v1/events, a stream of TransferEvents, and POST
// /kvplane/v1/transfers/{id}/cancel, whose body may say why. authorize refuses a request by returning an error, which
// the caller is told as 401; cancel must not block. A stream ends with its request: to shut down, cancel the server's
// base context.
func ControlHandler(events *Events, cancel func(id TransferID, why string), authorize func(r *http.Request) error) http.Handler {
	guard := func(next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if err := authorize(r); err != nil {
				refuse(w, http.StatusUnauthorized, "not authorized")
				return
			}
			next(w, r)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /kvplane/v1/events", guard(func(w http.ResponseWriter, r *http.Request) { serveEvents(w, r, events) }))
	mux.HandleFunc("POST /kvplane/v1/transfers/{id}/cancel", guard(func(w http.ResponseWriter, r *http.Request) {
		id, err := ParseTransferID(r.PathValue("id"))
		if err != nil {
			refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		why, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxWhy))
		if err != nil {
			refuse(w, http.StatusRequestEntityTooLarge, "the reason is too long")
			return
		}
		cancel(id, string(why))
		w.WriteHeader(http.StatusAccepted)
	}))
	return mux
}

func refuse(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": message, "code": code}}) // the client may be gone
}

// serveEvents streams until the client leaves, the server closes, or the stream cannot be written.
func serveEvents(w http.ResponseWriter, r *http.Request, events *Events) {
	feed, end := events.Subscribe(eventsBuffer)
	defer end()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
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
				return // a TransferEvent can always be encoded
			}
			line = append(append(append(line[:0], "data: "...), b...), "\n\n"...)
		case <-alive.C:
			line = append(line[:0], ": alive\n\n"...)
		case <-r.Context().Done():
			return
		}
	}
}
