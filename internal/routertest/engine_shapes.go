package routertest

import (
	"fmt"
	"io"
	"net/http"

	"pdrouter/router/openai"
)

// What the fakes say of cached tokens: an engine that was handed the KV counts all of it.
const (
	CachedByPrefill = 2
	CachedByDecode  = 6
)

// shape is the one of a request of the newer routes.
func (b *fakeBody) shape() (openai.Shape, bool) {
	switch b.path {
	case PathResponses:
		return openai.ShapeResponses, true
	case PathMessages:
		return openai.ShapeMessages, true
	case PathGenerate:
		return openai.ShapeGenerate, true
	}
	return 0, false
}

// taken sends the events that tell that a request was taken, before there is anything of its answer.
func (f *Engine) taken(w http.ResponseWriter, b fakeBody) {
	if s, _ := b.shape(); s != openai.ShapeResponses || !b.Stream {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for i, kind := range []string{"created", "in_progress"} {
		fmt.Fprintf(w, "event: response.%s\ndata: {\"response\":{\"id\":%q,\"usage\":null,\"kv_transfer_params\":null},\"sequence_number\":%d,\"type\":\"response.%s\"}\n\n",
			kind, b.RequestID, i, kind)
	}
	w.(http.Flusher).Flush()
}

// shapedUsage is the usage of an answer of n tokens.
func shapedUsage(s openai.Shape, b fakeBody, n int) string {
	cached := CachedByDecode
	if b.KV["do_remote_decode"] == true {
		cached = CachedByPrefill
	}
	switch s {
	case openai.ShapeResponses:
		return fmt.Sprintf(`{"input_tokens":7,"input_tokens_details":{"cached_tokens":%d,"cached_tokens_per_turn":[%d]},"output_tokens":%d,"total_tokens":%d}`,
			cached, cached, n, 7+n)
	case openai.ShapeMessages:
		return fmt.Sprintf(`{"input_tokens":%d,"output_tokens":%d,"cache_read_input_tokens":%d}`, 7-cached, n, cached)
	}
	return fmt.Sprintf(`{"prompt_tokens":7,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`, n, cached)
}

func shapedAnswer(s openai.Shape, b fakeBody, n int, extra string) string {
	usage := shapedUsage(s, b, n)
	switch s {
	case openai.ShapeResponses:
		return fmt.Sprintf(`{"id":%q,"object":"response","status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":%q}]}],"usage":%s%s}`,
			b.RequestID, Tokens(n), usage, extra)
	case openai.ShapeMessages:
		return fmt.Sprintf(`{"id":"x","type":"message","role":"assistant","content":[{"type":"text","text":%q}],"usage":%s%s}`, Tokens(n), usage, extra)
	}
	return fmt.Sprintf(`{"request_id":"x","choices":[{"index":0,"text":%q,"token_ids":[1]}],"prompt_token_ids":[1,2],"usage":%s%s}`, Tokens(n), usage, extra)
}

func shapedToken(s openai.Shape, i int) string {
	switch s {
	case openai.ShapeResponses:
		return fmt.Sprintf("event: response.output_text.delta\ndata: {\"delta\":\"tok%d \",\"sequence_number\":%d,\"type\":\"response.output_text.delta\"}\n\n", i, i+2)
	case openai.ShapeMessages:
		start := ""
		if i == 0 {
			start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":7,\"output_tokens\":0}}}\n\n"
		}
		return start + fmt.Sprintf("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"tok%d \"}}\n\n", i)
	}
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"text\":\"tok%d \",\"token_ids\":[%d]}]}\n\n", i, i)
}

// ShapedError is an error event of a stream.
func ShapedError(s openai.Shape) string {
	switch s {
	case openai.ShapeResponses:
		return "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"as told\"}}}\n\n"
	case openai.ShapeMessages:
		return "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"internal_error\",\"message\":\"as told\"}}\n\n"
	}
	return "data: {\"error\":{\"message\":\"as told\",\"code\":500}}\n\ndata: [DONE]\n\n"
}

func shapedEnd(s openai.Shape, b fakeBody, n int) string {
	usage, params := shapedUsage(s, b, n), `"kv_transfer_params":{"remote_host":"10.9.9.9"}`
	switch s {
	case openai.ShapeResponses:
		return fmt.Sprintf("event: response.completed\ndata: {\"response\":{\"id\":%q,\"usage\":%s,%s},\"type\":\"response.completed\"}\n\n", b.RequestID, usage, params)
	case openai.ShapeMessages:
		return fmt.Sprintf("event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":%s,%s}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", usage, params)
	}
	return fmt.Sprintf("data: {\"choices\":[],\"usage\":%s,%s}\n\ndata: [DONE]\n\n", usage, params)
}

// shapedEnding ends a stream as the fault says.
func shapedEnding(w http.ResponseWriter, s openai.Shape, b fakeBody, x Fault, n int) {
	switch x.Do {
	case DoBreak:
		ResetConn(w)
	case DoCut:
		closeConn(w)
	case DoErrFrame:
		_, _ = io.WriteString(w, ShapedError(s))
	case DoNoDone:
	default:
		_, _ = io.WriteString(w, shapedEnd(s, b, n))
	}
}
