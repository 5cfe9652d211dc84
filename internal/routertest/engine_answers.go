package routertest

import (
	"fmt"
	"io"
	"net/http"
	"strings"
)

func (f *Engine) params(id string, x Fault) string {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	switch x.Do {
	case DoBare:
		return ""
	case DoPart:
		return fmt.Sprintf(`,"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":%q}`, f.ID)
	}
	if x.Do == DoOld {
		return fmt.Sprintf(`,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":%q,`+
			`"remote_host":"10.1.2.3","remote_port":5601,"tp_size":2,"remote_block_ids":[[1,2]]}`, f.ID)
	}
	name := id
	if f.PlainIDs {
		name = "cmpl-" + id + "-0"
	}
	return fmt.Sprintf(`,"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":%q,`+
		`"remote_host":"10.1.2.3","remote_port":5601,"tp_size":2,"pp_size":1,"dcp_size":1,"remote_block_ids":[[1,2]],`+
		`"remote_request_id":%q,"transfer_id":%q}`, f.ID, name, id)
}

func (f *Engine) answer(w http.ResponseWriter, b fakeBody, extra string) {
	w.Header().Set("Content-Type", "application/json")
	n := f.habits().Tokens
	if b.MaxTokens > 0 {
		n = min(n, b.MaxTokens)
	}
	if s, ok := b.shape(); ok {
		_, _ = io.WriteString(w, shapedAnswer(s, b, n, extra))
		return
	}
	if ids := f.habits().IDs; ids != "" && b.IDs && b.path == PathChat {
		extra = `,"prompt_token_ids":` + ids + extra
	}
	finish := "stop"
	if n < f.habits().Tokens {
		finish = "length"
	}
	fmt.Fprintf(w, `{"id":"x","object":"text_completion","model":%q,"choices":[{"index":0,"text":%q,"finish_reason":%q}],`+
		`"usage":{"prompt_tokens":7,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}%s}`,
		b.Model, f.says(b)+Tokens(n), finish, n, 4, extra)
}

// pad is a member that makes an answer as large as the fault says.
func pad(x Fault) string {
	if x.Do != DoBigToken {
		return ""
	}
	return `,"pad":"` + strings.Repeat("a", x.N) + `"`
}

// says is how its answer begins.
func (f *Engine) says(b fakeBody) string {
	if !f.habits().Parrot {
		return ""
	}
	return fmt.Sprintf("%v/%v/%d ", b.Prompt, b.Seed, b.N)
}

// Tokens is the text of n tokens.
func Tokens(n int) string {
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, "tok%d ", i)
	}
	return s.String()
}

// generate answers a decode or aggregated leg.
func (f *Engine) generate(w http.ResponseWriter, r *http.Request, b fakeBody, x Fault) {
	f.working(1)
	defer f.working(-1)
	if !b.Stream {
		if pause(r, x) {
			f.answer(w, b, `,"kv_transfer_params":{"remote_host":"10.9.9.9"}`+pad(x))
		}
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	flush := w.(http.Flusher).Flush
	if x.Do == DoBigToken {
		fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"text\":%q}]}\n\n", strings.Repeat("a", x.N))
		flush()
		<-r.Context().Done()
		return
	}
	n := f.habits().Tokens
	if x.Do == DoBreak || x.Do == DoCut || x.Do == DoNoDone || x.Do == DoErrFrame {
		n = x.N
	}
	for i := range n {
		if r.Context().Err() != nil || !pause(r, x) || i > 0 && x.Do == DoLateToken && !pause(r, Fault{Do: DoSlow, N: x.N}) {
			return
		}
		said := ""
		if i == 0 {
			said = f.says(b)
		}
		if s, ok := b.shape(); ok {
			_, _ = io.WriteString(w, shapedToken(s, i))
			flush()
			continue
		}
		fmt.Fprintf(w, "data: {\"id\":\"%s\",\"choices\":[{\"index\":0,\"text\":\"%stok%d \"}]}\n\n", r.Header.Get("X-Request-Id"), said, i)
		flush()
	}
	if s, ok := b.shape(); ok {
		shapedEnding(w, s, b, x, n)
		return
	}
	switch x.Do {
	case DoBreak:
		ResetConn(w)
		return
	case DoCut:
		closeConn(w)
		return
	case DoNoDone:
		return
	case DoErrFrame:
		_, _ = io.WriteString(w, "data: {\"error\":{\"message\":\"as told\",\"code\":500}}\n\n")
	default:
		details := ""
		if cached := f.habits().Cached; cached > 0 {
			details = fmt.Sprintf(`,"prompt_tokens_details":{"cached_tokens":%d}`, cached)
		}
		fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":%d%s},"+
			"\"kv_transfer_params\":{\"remote_host\":\"10.9.9.9\"}}\n\n", n, details)
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}
