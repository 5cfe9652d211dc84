package leg

import (
	"encoding/json"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/fleet/health"
	"pdrouter/router/openai/answer"
)

// errorMessage returns the message of the engine's error, as it stands in JSON. With unwrapped, the error may have no wrapper.
func (l *Leg) errorMessage(unwrapped bool) string {
	ans := l.Answer
	if ans.ErrorMessage == "" && unwrapped {
		ans, _ = answer.Parse(connector.WrapError(l.Body))
	}
	return ans.ErrorMessage
}

// ObservePeer counts a failed transfer that SGLang reports on this leg against the peer's engine too. The cause may lie there while the
// peer's leg still waits: only decode reports that it cannot reach a bootstrap server. A healthy engine of the two recovers by its
// answers with other peers.
func (l *Leg) ObservePeer(f *fleet.Fleet, conn connector.Connector, peer *Leg, v Result) {
	if conn.Traits().UnwrappedErrors && v == Broken && connector.IsFailedTransfer(l.errorMessage(true)) {
		l.BlameBoth = true
		f.Failed(peer.Engine, health.AnswerFailed, time.Now())
	}
}

// RejectedInStream returns Rejected for a stream that begins with an error of code 400, and sets the leg's status to that code. SGLang's
// scheduler finds some faults of a request only after the stream's status 200 was sent.
func (l *Leg) RejectedInStream(v Result) Result {
	var body struct{ Error struct{ Code int } }
	if v != Broken || l.Status != 200 || json.Unmarshal(l.Body, &body) != nil || body.Error.Code != 400 {
		return v
	}
	l.Status, l.ContentType = body.Error.Code, "application/json"
	return Rejected
}
