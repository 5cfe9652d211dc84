// Package kvtransfer tells engines of connector kvplane of single transfers: that one is permitted (a ticket, which travels with the request),
// and that it is not wanted any more (a cancel, over the control route). The exchange and the handshake use it. What engines say of transfers
// is read by package monitor.
package kvtransfer

import (
	"crypto/sha256"
	"encoding/binary"
	"log/slog"
	"pdrouter/internal/background"
	"sync/atomic"
	"time"

	"pdrouter/kvplane"
	"pdrouter/metadata"
	"pdrouter/router/connector"
	"pdrouter/router/fleet"
)

// Enroller derives the keys with which gateways sign what they say to one run of an engine, named by its engine id: the
// one that this gateway signs with first, none if it signs nothing. It must not block and be safe for concurrent use.
type Enroller interface {
	Enrolment(id string) ([][]byte, error)
}

// Transfers tells engines of connector kvplane of single transfers. It is safe for concurrent use.
type Transfers struct {
	log   *slog.Logger
	tasks *background.Tasks
	keys  fleet.PerEngine[atomic.Pointer[enrolment]] // of an engine's run that was last given a ticket
}

// enrolment is the key that signs tickets for one run of an engine.
type enrolment struct {
	inc metadata.Incarnation
	key []byte
}

// New returns one that has no keys yet. It asks for them as tickets are signed.
func New(log *slog.Logger, tasks *background.Tasks) *Transfers {
	return &Transfers{log: log, tasks: tasks, keys: fleet.NewPerEngine[atomic.Pointer[enrolment]]()}
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

// Sign gives both legs of a transfer their tickets, if this router has a key to sign them with.
func (t *Transfers) Sign(keys Enroller, h *connector.Handoff, prefill, decode *fleet.Engine, context [16]byte) {
	if keys == nil {
		return
	}
	p, d := t.key(keys, prefill, h.Prefill), t.key(keys, decode, h.Decode)
	if p == nil || d == nil {
		return
	}
	id, err := kvplane.ParseTransferID(h.Transfer)
	if err != nil {
		return // it was drawn here
	}
	ticket := kvplane.GatewayTicket{
		ID: id, Prefill: h.Prefill, Decode: h.Decode, Context: context, Issued: time.Now(), Valid: time.Duration(h.ValidMS) * time.Millisecond,
	}
	h.PrefillTicket, h.DecodeTicket = ticket.AppendSealed(nil, p), ticket.AppendSealed(nil, d)
}

// key returns the key for one run of an engine, nil if there is none.
func (t *Transfers) key(from Enroller, e *fleet.Engine, inc metadata.Incarnation) []byte {
	if known := t.keys.Of(e).Load(); known != nil && known.inc == inc {
		return known.key
	}
	keys, err := from.Enrolment(inc.ID())
	if err != nil {
		t.log.Error("ticket", "engine", inc.ID(), "err", err)
	}
	if len(keys) == 0 {
		return nil
	}
	t.keys.Of(e).Store(&enrolment{inc: inc, key: keys[0]})
	return keys[0]
}
