package metadata

import (
	"fmt"
	"net/http"
)

// read is readable for the engine and the rank of the path. The caller is asked for twice: before the store is touched, and when
// the engine's role is known.
func (h *Handler) read(r *http.Request) ([]Record, Rank, error) {
	engine, rank, err := target(r)
	if err != nil {
		engine = "" // still only for those who may read something
	}
	if _, err := h.auth.Authorize(r, Access{Action: Read, Engine: engine, Rank: rank}); err != nil {
		return nil, rank, err
	}
	if err != nil {
		return nil, rank, err
	}
	recs, err := h.readable(r, engine, rank)
	return recs, rank, err
}

// readable returns the records of an engine if the caller may have them. Every route that gives out records asks it.
func (h *Handler) readable(r *http.Request, engine string, rank Rank) ([]Record, error) {
	recs, err := h.store.Engine(r.Context(), engine)
	if err != nil {
		return nil, err
	}
	_, err = h.auth.Authorize(r, Access{Action: Read, Engine: engine, Rank: rank, Role: recs[0].Role})
	return recs, err
}

func (h *Handler) rank(w http.ResponseWriter, r *http.Request) error {
	recs, rank, err := h.read(r)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if rec.Rank == rank {
			return h.send(w, r, []Record{rec}, true)
		}
	}
	return fmt.Errorf("metadata: engine %s rank %v: %w", recs[0].Engine, rank, ErrNotFound)
}

func (h *Handler) engine(w http.ResponseWriter, r *http.Request) error {
	recs, _, err := h.read(r)
	if err != nil {
		return err
	}
	return h.send(w, r, recs, false)
}
