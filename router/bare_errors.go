package router

import (
	"encoding/json"
	"time"

	"pdrouter/router/connector"
	"pdrouter/router/fleet/health"
	"pdrouter/router/leg"
	"pdrouter/router/openai/answer"
)

// doubt looks at how the leg l has ended. If SGLang says that the transfer failed, the cause may lie with the peer, whose leg
// waits on: a bootstrap server that decode cannot reach is told of by decode alone. So it counts against both: whichever is well
// has other peers, and their answers clear it.
func (x *exchange) doubt(l, peer *leg.Leg, v leg.Result) {
	if !x.m.Connector.Traits().BareErrors || v != leg.Broken {
		return
	}
	ans := l.Answer
	if ans.ErrorMessage == "" {
		ans, _ = answer.Parse(connector.WrapBareError(l.Body))
	}
	if connector.IsFailedTransfer(ans.ErrorMessage) {
		l.BlameBoth = true
		x.s.fleet.Failed(peer.Engine, health.AnswerFailed, time.Now())
	}
}

// rejectedInStream takes a stream that begins with an error of the request's own for an answer of that status: where only SGLang's
// scheduler finds the fault, the stream has said 200.
func rejectedInStream(l *leg.Leg, v leg.Result) leg.Result {
	var said struct{ Error struct{ Code int } }
	if v != leg.Broken || l.Status != 200 || json.Unmarshal(l.Body, &said) != nil || said.Error.Code != 400 {
		return v
	}
	l.Status, l.ContentType = said.Error.Code, "application/json"
	return leg.Rejected
}
