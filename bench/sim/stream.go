package sim

import (
	"fmt"
	"io"

	"pdrouter/bench/fake"
)

// modelStream is a streamed answer: an event a token, as they come. It is read by one goroutine.
type modelStream struct {
	server      *modelServer
	seq         *ModelSeq
	chat, usage bool
	first       ModelToken
	buf         []byte
	over        bool
}

// Read waits for the next event, and takes along those behind it that are there already.
func (r *modelStream) Read(p []byte) (int, error) {
	if len(r.buf) == 0 {
		if r.over {
			return 0, io.EOF
		}
		t, err := r.server.await(r.seq)
		if err != nil {
			return 0, err
		}
		r.event(t)
		for more := true; more && !r.over; {
			select {
			case t := <-r.seq.out:
				r.event(t)
			default:
				more = false
			}
		}
	}
	n := copy(p, r.buf)
	r.buf = r.buf[n:]
	return n, nil
}

// CloseWithError ends what still runs for the answer.
func (r *modelStream) CloseWithError(error) error {
	if !r.over {
		r.server.clock.cancel(r.seq)
	}
	return nil
}

// event appends what is sent for a token.
func (r *modelStream) event(t ModelToken) {
	finish := "null"
	if t.Last {
		finish = `"length"`
	}
	delta, object := `"delta":{"content":" word"}`, "chat.completion.chunk"
	if !r.chat {
		delta, object = `"text":" word"`, "text_completion"
	}
	r.buf = fmt.Appendf(r.buf, `data: {"id":"cmpl-bench","object":%q,"created":1700000000,"model":%q,"choices":[{"index":0,%s,"logprobs":null,"finish_reason":%s}]}`+"\n\n", object, fake.Model, delta, finish)
	if !t.Last {
		return
	}
	if r.usage {
		r.buf = fmt.Appendf(r.buf, `data: {"id":"cmpl-bench","object":%q,"created":1700000000,"model":%q,"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}`+"\n\n", object, fake.Model, r.seq.Prompt, r.seq.Prompt+r.seq.Answer, r.seq.Answer)
	}
	r.buf = append(r.buf, "data: [DONE]\n\n"...)
	r.over = true
}
