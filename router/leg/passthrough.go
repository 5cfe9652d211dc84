package leg

import (
	"net/http"

	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
)

// Passthrough completes a request that is passed to the engine as it is.
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

// ReadAnswer reads an answer that is not streamed, without the engines' hand-off. passed says that it may be any answer.
func (l *Leg) ReadAnswer(limit int, passed bool) (v Result) {
	if passed {
		v = l.ReadAny(limit)
	} else {
		v = l.Whole(limit)
	}
	if v != Usable || passed && !openai.IsJSON(l.ContentType) && !openai.MayBeJSON(l.Body) {
		return v
	}
	body, ok := answer.Strip(l.Body, &l.Answer)
	if !ok {
		return InvalidResponse
	}
	l.Body = body
	return Usable
}

// ReadAny reads a 200 answer whatever it is, but that JSON has to be JSON.
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

// MediaMetadata is the one field of an answer's head that clients get besides its content type: what stock engines say of an
// answer of bytes, without which nobody can read it.
func (l *Leg) MediaMetadata() string {
	if l.Response == nil || answer.NamesTransfer([]byte(l.Response.Metadata)) {
		return ""
	}
	return l.Response.Metadata
}
