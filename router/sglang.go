package router

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"

	"pdrouter/policies"
	"pdrouter/router/dispatch"
	"pdrouter/router/fleet/health"
	"pdrouter/router/openai/jsonscan"
	"pdrouter/router/reason"
)

// sglang is stock SGLang's disaggregation: both legs get the same body, with the address of the prefill engine's bootstrap
// server and the number of the room in which the two meet. Prefill answers when its blocks are with decode, and ends itself
// behind one token. Either engine gives up what it has for a request whose connection closes, so whatever the end, both legs
// are closed. Neither serves a request alone: without a room it refuses.
type sglang struct{}

var sglangTraits = traits{name: ConnectorSGLang, mode: dispatch.Together, requiresSplit: true, meets: true, bareErrors: true}

func (sglang) traits() *traits { return &sglangTraits }

func (sglang) End(e dispatch.Ending, out []dispatch.Action) []dispatch.Action {
	if e.Decode == dispatch.LegWhole {
		if e.Prefill == dispatch.LegAsked { // decode has all blocks: its answer is on its way
			out = append(out, dispatch.Action{Do: dispatch.DoFinishPrefill})
		}
		return out
	}
	if e.Prefill == dispatch.LegAsked {
		out = append(out, dispatch.Action{Do: dispatch.DoClosePrefill})
	}
	if e.Decode.Open() {
		out = append(out, dispatch.Action{Do: dispatch.DoCloseDecode})
	}
	return out
}

func (sglang) prefillParams(dst []byte, h *handoff) []byte { return h.meeting.appendTo(dst) }
func (sglang) decodeParams(dst []byte, h *handoff) []byte  { return h.meeting.appendTo(dst) }

// accept takes any answer: prefill has none before its blocks are with decode.
func (sglang) accept(*handoff, []byte) dispatch.EventKind { return dispatch.EvPrefillUsable }

// meeting is where the legs of one dispatch meet (connector sglang).
type meeting struct {
	host string // of the prefill engine's bootstrap server
	port int
	room uint64 // new at every dispatch
}

// defaultBootstrapPort is SGLang's own.
const defaultBootstrapPort = 8998

// bootstrapOf returns the prefill engine's bootstrap server: the host of its URL, and the port of its own.
func bootstrapOf(ec Engine) meeting {
	m := meeting{port: ec.BootstrapPort}
	if m.port == 0 {
		m.port = defaultBootstrapPort
	}
	if u, err := url.Parse(ec.URL); err == nil {
		if m.host = u.Hostname(); strings.Contains(m.host, ":") {
			m.host = "[" + m.host + "]"
		}
	}
	return m
}

// draw returns the meeting with a room of 63 bits that nobody else has: SGLang keeps it in 64, signed on some devices. All of
// them are random, as the room modulo their number is the data-parallel rank that serves it.
func (m meeting) draw() meeting {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	m.room = binary.BigEndian.Uint64(b[:]) >> 1
	return m
}

// appendTo appends the members that go into either body.
func (m meeting) appendTo(dst []byte) []byte {
	dst = append(dst, `"bootstrap_host":`...)
	dst = appendString(dst, m.host)
	dst = append(dst, `,"bootstrap_port":`...)
	dst = strconv.AppendInt(dst, int64(m.port), 10)
	dst = append(dst, `,"bootstrap_room":`...)
	return strconv.AppendUint(dst, m.room, 10)
}

// insist makes a question to the planner one whose answer is two engines, whatever the request is.
func (m *model) insist(q policies.Request) policies.Request {
	if m.conn.traits().requiresSplit {
		q.PromptTokens, q.Unsplittable = 1<<30, ""
	}
	return q
}

// insisted takes back a choice of decode alone where decode does not serve alone.
func (k *look) insisted(c policies.Choice) policies.Choice {
	if k.m.conn.traits().requiresSplit && !c.Split && c.Decode >= 0 {
		c.Decode, c.Reason = -1, policies.NoPrefill
	}
	return c
}

// failedTransfers are how SGLang begins its word of a transfer that failed, on either engine.
var failedTransfers = [...]string{"Decode handshake failed", "Decode transfer failed", "Prefill bootstrap failed", "Prefill transfer failed"}

// doubt looks at how the leg l has ended. If SGLang says that the transfer failed, the cause may lie with the peer, whose leg
// waits on: a bootstrap server that decode cannot reach is told of by decode alone. So it counts against both: whichever is well
// has other peers, and their answers clear it.
func (x *exchange) doubt(l, peer *call, v verdict) {
	if !x.m.conn.traits().bareErrors || v != vBroken {
		return
	}
	ans := l.ans
	if ans.errMessage == "" {
		ans, _ = parseAnswer(shapedBare(l.body))
	}
	for _, words := range failedTransfers {
		if strings.HasPrefix(ans.errMessage, words) {
			l.either = true
			x.r.bad(peer.engine, health.AnswerFailed, time.Now())
			return
		}
	}
}

// rejectedInStream takes a stream that begins with an error of the request's own for an answer of that status: where only SGLang's
// scheduler finds the fault, the stream has said 200.
func rejectedInStream(l *call, v verdict) verdict {
	var said struct{ Error struct{ Code int } }
	if v != vBroken || l.status != 200 || json.Unmarshal(l.body, &said) != nil || said.Error.Code != 400 {
		return v
	}
	l.status, l.ctype = said.Error.Code, "application/json"
	return vRejected
}

// shapedBare gives an error of SGLang, which stands bare, the shape that clients know. Any other body is as it was.
func shapedBare(body []byte) []byte {
	s := jsonscan.Scanner{Bytes: body, MaxDepth: maxAnswerDepth}
	bare := false
	s.Space()
	m, ok := s.Object(1)
	for ok && s.Member(&m) {
		at, is := s.Pos, string(m.Key) == "object"
		if s.Value(1) && is {
			bare = string(body[at:s.Pos]) == `"error"`
		}
	}
	if !s.End() || !bare {
		return body
	}
	return append(append([]byte(`{"error":`), body...), '}')
}

// servable refuses bodies that neither two engines of the model can serve together nor one alone.
func (q *admitted) servable() *httpError {
	if !q.m.conn.traits().requiresSplit || q.route.does != generate {
		return nil
	}
	if q.b.shape != shapeCompletions && q.b.shape != shapeChat { // no room is put into them, nor by SGLang's own router
		return errBadRequest(reason.BadField, "model", "The model `%s` is not served on %s.", clip(q.b.model, 256), q.route.path)
	}
	switch why := q.b.unsplittable; {
	case why == unsplitEcho, why == unsplitLogprobs, why == unsplitEmbedding, why == unsplitBestOf, why == unsplitBeam:
		return errBadRequest(reason.BadField, "", "The model `%s` does not serve requests with %s.", clip(q.b.model, 256), why)
	case q.b.choices() > 1 && (q.b.choices() > q.s.cfg.Limits.Fan || !q.b.fans(true)):
		return errBadRequest(reason.OverCap, "n", "The model `%s` does not serve so many choices with these parameters.", clip(q.b.model, 256))
	}
	return nil
}
