package router

import (
	"net/http"

	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
)

// writePassed completes the letter to the engine.
func writePassed(p *openai.Passthrough, m *letter) {
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

// told reads an answer that is not streamed, without the engines' hand-off. passed says that it may be any answer.
func (l *call) told(limit int, passed bool) (v verdict) {
	if passed {
		v = l.any(limit)
	} else {
		v = l.whole(limit)
	}
	if v != vUsable || passed && !openai.IsJSON(l.ctype) && !openai.MayBeJSON(l.body) {
		return v
	}
	body, ok := answer.Strip(l.body, &l.ans)
	if !ok {
		return vGarbage
	}
	l.body = body
	return vUsable
}

// any reads a 200 answer whatever it is, but that JSON has to be JSON.
func (l *call) any(max int) verdict {
	var err error
	if l.body, err = l.resp.ReadAll(l.body[:0], max); err != nil {
		return l.failed(err)
	}
	if !openai.IsJSON(l.ctype) {
		return vUsable
	}
	ans, ok := answer.Parse(l.body)
	if ok {
		l.ans = ans
	} else if s := (jsonscan.Scanner{Bytes: l.body, MaxDepth: answer.MaxAnswerDepth}); !openai.IsJSONValue(&s) {
		return vGarbage
	}
	return vUsable
}

// metadata is the one field of an answer's head that clients get besides its content type: what stock engines say of an
// answer of bytes, without which nobody can read it.
func (l *call) metadata() string {
	if l.resp == nil || answer.NamesTransfer([]byte(l.resp.Metadata)) {
		return ""
	}
	return l.resp.Metadata
}
