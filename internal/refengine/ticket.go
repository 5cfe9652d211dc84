package refengine

import (
	"errors"
	"net/http"

	"pdrouter/kvplane/ticket"
	"pdrouter/metadata"
)

// codeTicket is the code of the answer to a leg whose ticket is not accepted. Nothing was begun: the gateway may send the
// request elsewhere, or once more under a new ticket.
const codeTicket = "ticket"

// ticketed checks the ticket of a leg, and notes its digest. A ticket serves once, whatever becomes of the leg.
func (e *Engine) ticketed(req *Request) error {
	leg := metadata.Decode
	if req.Leg == PrefillLeg {
		leg = metadata.Prefill
	}
	var err error
	req.Handoff.digest, err = e.admitter.Admit(req.Handoff.Ticket, leg, req.Handoff.ID, req.Handoff.Peer)
	if err == nil {
		return nil
	}
	why := "unknown"
	if f := ticket.Fault(0); errors.As(err, &f) {
		why = f.String()
	}
	e.post(func() { e.counts.tickets[why]++ })
	e.cfg.Log.Warn("leg refused", "transfer", req.Handoff.ID.String(), "leg", req.Leg.String(), "ticket", why)
	return &apiError{
		Status: http.StatusForbidden, Type: "PermissionDeniedError", Message: "The leg's ticket is not accepted: " + why + ".",
		Param: "kv_transfer_params", Code: codeTicket,
	}
}
