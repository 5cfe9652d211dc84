// Package kvtransfer tells engines of connector kvplane of single transfers: that one is permitted (a ticket, which travels with the request),
// and that nobody wants it any more (a cancel, over the control route). The exchange and the handshake use it. What engines say of transfers
// is read by package monitor.
package kvtransfer

import (
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"time"

	"pdrouter/internal/background"
	"pdrouter/kvplane/ticket"
	"pdrouter/kvplane/transfer"
	"pdrouter/router/connector"
)

// Signer signs the tickets of a gateway and nothing else (records.Records.Tickets). It must not block and be safe for concurrent use.
type Signer = ticket.Signer

// Transfers tells engines of connector kvplane of single transfers. It is safe for concurrent use.
type Transfers struct {
	log   *slog.Logger
	tasks *background.Tasks
}

// New returns one whose cancels run among tasks.
func New(log *slog.Logger, tasks *background.Tasks) *Transfers {
	return &Transfers{log: log, tasks: tasks}
}

// ContextOf is the digest of what the KV of a request depends on besides its tokens: the model, whose it is, and the
// cache's salt as the engines get it.
func ContextOf(model, subject string, salt []byte) [16]byte {
	b := append(make([]byte, 0, 192), "pdrouter context v1\x00"...)
	b = append(binary.AppendUvarint(b, uint64(len(model))), model...)
	b = append(binary.AppendUvarint(b, uint64(len(subject))), subject...)
	b = binary.AppendUvarint(b, uint64(len(salt)))
	d := sha256.New()
	d.Write(b)
	d.Write(salt) // it may be as long as a body, and is not copied
	return [16]byte(d.Sum(b[:0]))
}

// Sign gives a transfer its ticket, which both legs carry. A nil signer signs nothing.
func (t *Transfers) Sign(by Signer, h *connector.Handoff, context [16]byte) {
	if by == nil {
		return
	}
	id, err := transfer.ParseID(h.Transfer)
	if err != nil {
		return // it was drawn here
	}
	it := ticket.Ticket{
		ID: id, Prefill: h.Prefill, Decode: h.Decode, Context: context, Issued: time.Now(), Valid: time.Duration(h.ValidMS) * time.Millisecond,
	}
	if h.Ticket, err = it.AppendSigned(nil, by); err != nil {
		t.log.Error("ticket", "transfer_id", h.Transfer, "err", err)
	}
}
