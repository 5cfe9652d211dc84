package routes

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/internal/refusal"
	"pdrouter/metadata"
)

// list answers with the engines that the caller may read.
func (h *Handler) list(w http.ResponseWriter, r *http.Request) error {
	caller, err := h.auth.Authorize(r, Access{Action: List})
	if err != nil {
		return err
	}
	out, may := []metadata.Listed{}, h.accessMany(r, caller)
	for _, name := range h.copy.Engines() {
		recs, all, err := may.engine(name, metadata.Rank{})
		if err != nil {
			if status := refuse(err).Status; status == http.StatusForbidden || status == http.StatusNotFound {
				continue // gone since it was listed, or not for this caller
			}
			return err
		}
		first := recs[0]
		l := metadata.Listed{Incarnation: first.Incarnation, Role: first.Role, Connector: first.Connector, Ranks: all, Size: first.Size, Expires: first.Expires}
		for _, rec := range recs {
			if rec.Expires.Before(l.Expires) {
				l.Expires = rec.Expires
			}
		}
		out = append(out, l)
	}
	if !wantsMsgpack(r) {
		b, err := json.Marshal(map[string][]metadata.Listed{"engines": out})
		return sendBytes(w, "application/json", b, err)
	}
	b, err := msgpack.Marshal(out)
	return sendBytes(w, metadata.ContentType, b, err)
}

// send answers with records: one, or an array of them. Machines ask for msgpack, people get JSON.
func (h *Handler) send(w http.ResponseWriter, r *http.Request, recs []metadata.Record, one bool) error {
	if !wantsMsgpack(r) {
		var v any = map[string][]metadata.Record{"ranks": recs}
		if one {
			v = recs[0]
		}
		b, err := json.Marshal(v)
		return sendBytes(w, "application/json", b, err)
	}
	if one {
		b, err := metadata.Marshal(recs[0])
		return sendBytes(w, metadata.ContentType, b, err)
	}
	raws := make([]msgpack.RawMessage, len(recs))
	for i, rec := range recs {
		b, err := metadata.Marshal(rec)
		if err != nil {
			return err
		}
		raws[i] = b
	}
	b, err := msgpack.Marshal(raws)
	return sendBytes(w, metadata.ContentType, b, err)
}

func sendBytes(w http.ResponseWriter, kind string, b []byte, err error) error {
	if err != nil {
		return &refusal.Error{Status: http.StatusInternalServerError, Reason: "internal", Msg: "internal error", Err: err}
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.Header().Set("Vary", "Accept")
	w.Header().Set("Cache-Control", "no-store")
	w.Write(b)
	return nil
}

// wantsMsgpack reports whether the caller names msgpack among what it accepts.
func wantsMsgpack(r *http.Request) bool { return accepts(r, metadata.ContentType) }
