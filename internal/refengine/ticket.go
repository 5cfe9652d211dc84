package refengine

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"pdrouter/kvplane"
	"pdrouter/metadata"
)

// codeTicket is the code of the answer to a leg whose ticket is not accepted. Nothing was begun: the gateway may send the
// request elsewhere, or once more under a new ticket.
const codeTicket = "ticket"

// Agree computes the secret that one of the engine's ranks shares with the holder of a public key (kvplane.Agent.Agree).
func (e *Engine) Agree(rec metadata.Record, public []byte) ([]byte, error) {
	if e.plane != nil {
		for _, a := range e.plane.agents {
			if a.Record().Rank == rec.Rank {
				return a.Agree(rec, public)
			}
		}
	}
	return nil, fmt.Errorf("refengine: no rank %v has an agent", rec.Rank)
}

// Enrol takes what a gateway has answered to the publishing of this engine's records: the keys that it signs tickets
// with, and the time by its clock. From the first key on every leg needs a ticket.
func (e *Engine) Enrol(keys [][]byte, now time.Time) { e.gate.Enrol(keys, now) }

// ticketed checks the ticket of a leg, and notes its digest. A ticket serves once, whatever becomes of the leg.
func (e *Engine) ticketed(req *Request) error {
	leg := metadata.Decode
	if req.Leg == PrefillLeg {
		leg = metadata.Prefill
	}
	var err error
	req.Handoff.digest, err = e.gate.Admit(req.Handoff.Ticket, leg, req.Handoff.ID, req.Handoff.Peer)
	if err == nil {
		return nil
	}
	why := "unknown"
	if f := kvplane.TicketFault(0); errors.As(err, &f) {
		why = f.String()
	}
	e.post(func() { e.counts.tickets[why]++ })
	e.cfg.Log.Warn("leg refused", "transfer", req.Handoff.ID.String(), "leg", req.Leg.String(), "ticket", why)
	return &apiError{
		Status: http.StatusForbidden, Type: "PermissionDeniedError", Message: "The leg's ticket is not accepted: " + why + ".",
		Param: "kv_transfer_params", Code: codeTicket,
	}
}
