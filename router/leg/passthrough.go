package leg

import (
	"net/http"

	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
)

// Passthrough completes a request that is passed to the engine unchanged.
func Passthrough(p *openai.Passthrough, m *Request) {
	m.Method = p.Method
	if p.ContentType == "" {
		m.Header = m.Header[1:]
	} else {
		m.Header[0].Value = p.ContentType
	}
	if p.Method == http.MethodGet {
		m.Body = nil
	}
	for i := range m.Header {
		if m.Header[i].Name == "Accept" {
			m.Header[i].Value = "*/*"
		}
	}
}

// ReadAny reads a 200 answer of any content type. An answer of type JSON must be valid JSON.
func (l *Leg) ReadAny(max int) Result {
	var err error
	if l.Body, err = l.Response.ReadAll(l.Body[:0], max); err != nil {
		return l.failed(err)
	}
	if !openai.IsJSON(l.ContentType) {
		return Usable
	}
	ans, ok := answer.Parse(l.Body)
	if ok {
		l.Answer = ans
	} else if s := (jsonscan.Scanner{Bytes: l.Body, MaxDepth: answer.MaxAnswerDepth}); !openai.IsJSONValue(&s) {
		return InvalidResponse
	}
	return Usable
}

// MediaMetadata is the one header field of an answer that clients receive besides its content type. Stock engines describe an answer of
// raw bytes in it: a client cannot read the bytes without it.
func (l *Leg) MediaMetadata() string {
	if l.Response == nil || answer.NamesTransfer([]byte(l.Response.Metadata)) {
		return ""
	}
	return l.Response.Metadata
}
