package routertest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Fault is one thing that a fake engine does wrong.
type Fault struct {
	Leg string // "prefill", "decode", "alone"; "" is any
	Nth int    // which request of that leg, from 1; 0 is every one
	Do  string
	N   int // how much, for faults that have a measure
}

// What a fault may do.
const (
	DoRefuse    = "503"
	DoBusy      = "429"
	DoError     = "500"
	DoReject    = "400"
	DoTicket    = "403 ticket"    // the leg's ticket is not accepted
	DoReset     = "reset"         // the connection breaks before a byte
	DoResetLate = "reset later"   // behind N milliseconds
	DoDie       = "die"           // the same, and its port is closed
	DoHang      = "hang"          // nothing, until the client goes
	DoBare      = "no params"     // prefill answers without kv_transfer_params
	DoPart      = "part params"   // prefill answers with half of them
	DoOld       = "old params"    // prefill answers without remote_request_id
	DoGarbage   = "garbage"       // 200 and no JSON
	DoTrail     = "trail"         // 200 and JSON with more behind it, which names the hand-off
	DoPage      = "html"          // 200 and a page where a stream was asked for
	DoBreak     = "break"         // the stream breaks behind N tokens. Those that the router has not read yet may be lost
	DoCut       = "cut"           // the connection is closed after N tokens. All of them arrive
	DoNoDone    = "no done"       // the stream ends cleanly behind N tokens, without its terminal event
	DoErrFrame  = "error frame"   // an error event behind N tokens, then the terminal event
	DoNoKV      = "no kv"         // decode's blocks did not come: 503 transfer_failed
	DoSlow      = "slow"          // N milliseconds of prefill, or between tokens
	DoNeverKV   = "never writes"  // prefill answers and writes nothing
	DoSlowReply = "slow reply"    // prefill has written, and answers N milliseconds later
	DoBigToken  = "big token"     // one token of N bytes, and then none until the client goes; not streamed, an answer that is so much larger
	DoNewEngine = "new engine id" // prefill was started anew

	DoRefuseIDs   = "400 token ids" // of a leg that asks for, or carries, the prompt's token ids; it names them
	DoRejectNamed = "400 named"     // of any leg, in words that name the token ids
	DoBareIDs     = "400 unnamed"   // the same, without a name
	DoRefuseLate  = "503 later"     // behind N milliseconds
	DoErrorLate   = "500 later"     // behind N milliseconds
	DoRejectLate  = "400 later"     // behind N milliseconds
	DoLateToken   = "late tokens"   // N milliseconds before every token but the first
)

// fails does what needs no request. It reports whether that was all. By push, a prefill engine fails once decode waits for it: a
// gateway that ends decode's leg before decode has read it leaves prefill with KV that nobody can take, and then what a test expects
// to be held would depend on who was first.
func (f *Engine) fails(w http.ResponseWriter, r *http.Request, x Fault) bool {
	if x.Leg == "prefill" && f.Cluster.Push {
		f.Cluster.awaitDecode(r.Context(), r.Header.Get("X-Request-Id"))
	}
	switch x.Do {
	case DoRefuse:
		FakeError(w, 503, "Service Unavailable", "503")
	case DoBusy:
		if x.N > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(x.N))
		}
		FakeError(w, 429, "RateLimitError", "429")
	case DoRefuseLate:
		if pause(r, Fault{Do: DoSlow, N: x.N}) {
			FakeError(w, 503, "Service Unavailable", "503")
		}
	case DoError:
		FakeError(w, 500, "InternalServerError", "500")
	case DoErrorLate:
		if pause(r, Fault{Do: DoSlow, N: x.N}) {
			FakeError(w, 500, "InternalServerError", "500")
		}
	case DoTicket:
		FakeError(w, 403, "PermissionDeniedError", `"ticket"`)
	case DoReject:
		FakeError(w, 400, "BadRequestError", "400")
	case DoRejectLate:
		if pause(r, Fault{Do: DoSlow, N: x.N}) {
			FakeError(w, 400, "BadRequestError", "400")
		}
	case DoRefuseIDs, DoRejectNamed:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(400)
		_, _ = io.WriteString(w, `{"error":{"message":"Extra inputs are not permitted: return_token_ids, kv_transfer_params.prompt_token_ids","type":"BadRequestError","param":null,"code":400}}`)
	case DoBareIDs:
		FakeError(w, 400, "BadRequestError", "400")
	case DoNoKV:
		FakeError(w, 503, "ServiceUnavailableError", `"transfer_failed"`)
	case DoReset:
		ResetConn(w)
	case DoResetLate:
		if pause(r, Fault{Do: DoSlow, N: x.N}) {
			ResetConn(w)
		}
	case DoDie:
		_ = f.Server.Listener.Close()
		ResetConn(w)
	case DoHang:
		<-r.Context().Done()
	case DoGarbage:
		_, _ = io.WriteString(w, "hello")
	case DoTrail:
		_, _ = io.WriteString(w, `{"choices":[{"text":"a _transfer_params secret"}]} and more`)
	case DoPage:
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html></html>")
	default:
		return false
	}
	return true
}

// FakeError answers with an error in OpenAI's shape.
func FakeError(w http.ResponseWriter, status int, kind, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"message":"as told","type":%q,"param":null,"code":%s}}`, kind, code)
}

// ResetConn breaks the connection of a request.
func ResetConn(w http.ResponseWriter) {
	if conn := hijack(w); conn != nil {
		_ = conn.(interface{ SetLinger(int) error }).SetLinger(0)
		_ = conn.Close()
	}
}

// closeConn closes the connection of a request within its answer. What was sent arrives.
func closeConn(w http.ResponseWriter) {
	if conn := hijack(w); conn != nil {
		_ = conn.Close()
	}
}

func hijack(w http.ResponseWriter) net.Conn {
	if h, ok := w.(http.Hijacker); ok {
		if conn, _, err := h.Hijack(); err == nil {
			return conn
		}
	}
	return nil
}

// pause reports false if the client left meanwhile.
func pause(r *http.Request, x Fault) bool {
	if x.Do != DoSlow {
		return true
	}
	select {
	case <-r.Context().Done():
		return false
	case <-time.After(time.Duration(x.N) * time.Millisecond):
		return true
	}
}
