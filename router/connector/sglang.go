package connector

import (
	"crypto/rand"
	"encoding/binary"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"pdrouter/router/dispatch"
	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
)

// sglang is stock SGLang's disaggregation. Both legs get the same body, with the address of the prefill engine's bootstrap server and the
// bootstrap room, the number by which the two legs find each other. Prefill answers when decode has its blocks, and ends after one token.
// Either engine frees the blocks of a request whose connection closes, so both legs are closed however the attempt ends. Neither engine
// serves a request without a bootstrap room.
type sglang struct{}

var sglangTraits = Traits{Name: NameSGLang, Mode: dispatch.Together, RequiresSplit: true, Meets: true, UnwrappedErrors: true}

func (sglang) Traits() *Traits { return &sglangTraits }

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

func (sglang) PrefillMembers(dst []byte, h *Handoff) []byte { return h.Bootstrap.appendTo(dst) }
func (sglang) DecodeMembers(dst []byte, h *Handoff) []byte  { return h.Bootstrap.appendTo(dst) }

// Accept takes any answer: prefill has none before its blocks are with decode.
func (sglang) Accept(*Handoff, []byte) dispatch.EventKind { return dispatch.EvPrefillUsable }

// Bootstrap is where the legs of one attempt meet (connector sglang).
type Bootstrap struct {
	host string // of the prefill engine's bootstrap server
	port int
	room uint64 // new at every attempt
}

// DefaultBootstrapPort is SGLang's own.
const DefaultBootstrapPort = 8998

// BootstrapOf returns the prefill engine's bootstrap server: the host of its URL, and that port.
// A port of 0 is SGLang's default.
func BootstrapOf(engineURL string, port int) Bootstrap {
	m := Bootstrap{port: port}
	if m.port == 0 {
		m.port = DefaultBootstrapPort
	}
	if u, err := url.Parse(engineURL); err == nil {
		if m.host = u.Hostname(); strings.Contains(m.host, ":") {
			m.host = "[" + m.host + "]"
		}
	}
	return m
}

// Draw returns m with a new bootstrap room of 63 random bits: SGLang keeps it in 64 bits, signed on some devices. The low bits are random
// too, because the room modulo the number of data-parallel ranks chooses the rank.
func (m Bootstrap) Draw() Bootstrap {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	m.room = binary.BigEndian.Uint64(b[:]) >> 1
	return m
}

// appendTo appends the members that go into either body.
func (m Bootstrap) appendTo(dst []byte) []byte {
	dst = append(dst, `"bootstrap_host":`...)
	dst = openai.AppendString(dst, m.host)
	dst = append(dst, `,"bootstrap_port":`...)
	dst = strconv.AppendInt(dst, int64(m.port), 10)
	dst = append(dst, `,"bootstrap_room":`...)
	return strconv.AppendUint(dst, m.room, 10)
}

// failedTransfers are the prefixes of SGLang's messages of a failed transfer, of either engine.
var failedTransfers = [...]string{"Decode handshake failed", "Decode transfer failed", "Prefill bootstrap failed", "Prefill transfer failed"}

// IsFailedTransfer reports whether the message of an error says that a transfer failed.
func IsFailedTransfer(message string) bool {
	return slices.ContainsFunc(failedTransfers[:], func(words string) bool { return strings.HasPrefix(message, words) })
}

// WrapError wraps an error of SGLang, which has no wrapper, in OpenAI's shape. It returns any other body unchanged.
func WrapError(body []byte) []byte {
	s := jsonscan.Scanner{Bytes: body, MaxDepth: answer.MaxAnswerDepth}
	isError := false
	s.Space()
	m, ok := s.Object(1)
	for ok && s.Member(&m) {
		at, is := s.Pos, string(m.Key) == "object"
		if s.Value(1) && is {
			isError = string(body[at:s.Pos]) == `"error"`
		}
	}
	if !s.End() || !isError {
		return body
	}
	return append(append([]byte(`{"error":`), body...), '}')
}
