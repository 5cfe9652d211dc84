package router

import (
	"bytes"
	"net"
	"strconv"
)

// withoutMeeting returns an engine's refusal without the members that tell of the hand-off, at any depth. It reports false if
// what is left may tell of it still: then it is nothing for clients.
func (h *handoff) withoutMeeting(body []byte) ([]byte, bool) {
	out, ok := stripTransferParams(nil, body)
	if !ok {
		return nil, false
	}
	c := h.coord
	if h.kv != nil {
		if told, ok := parseCoordinates(h.kv); ok {
			c = told
		}
	}
	secrets := [...]string{h.transfer, string(h.prefillTicket), string(h.decodeTicket), "", "", "", ""}
	if c != nil {
		secrets[3], secrets[4] = c.EngineID, place(c.Host, c.Port)
	}
	if m := h.meeting; m.host != "" {
		secrets[5], secrets[6] = place(m.host, m.port), strconv.FormatUint(m.room, 10)
	}
	for _, s := range secrets {
		if s != "" && bytes.Contains(out, []byte(s)) {
			return nil, false
		}
	}
	return out, true
}

// place is a host and a port as messages have them; "" of no host.
func place(host string, port int) string {
	if host == "" {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// errRejected stands for an engine's refusal whose words are not for clients.
func errRejected(status int, why reason) *httpError {
	return &httpError{Status: status, Type: typeBadRequest, Reason: why.String(), Msg: "The engine rejected the request.", NoRetry: true}
}
