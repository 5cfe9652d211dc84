package router

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// fails does what needs no request. It reports whether that was all.
func (f *fakeVLLM) fails(w http.ResponseWriter, r *http.Request, x fault) bool {
	switch x.Do {
	case doRefuse:
		fakeError(w, 503, "Service Unavailable", "503")
	case doBusy:
		if x.N > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(x.N))
		}
		fakeError(w, 429, "RateLimitError", "429")
	case doRefuseLate:
		if pause(r, fault{Do: doSlow, N: x.N}) {
			fakeError(w, 503, "Service Unavailable", "503")
		}
	case doError:
		fakeError(w, 500, "InternalServerError", "500")
	case doErrorLate:
		if pause(r, fault{Do: doSlow, N: x.N}) {
			fakeError(w, 500, "InternalServerError", "500")
		}
	case doTicket:
		fakeError(w, 403, "PermissionDeniedError", `"ticket"`)
	case doReject:
		fakeError(w, 400, "BadRequestError", "400")
	case doNoKV:
		fakeError(w, 503, "ServiceUnavailableError", `"transfer_failed"`)
	case doReset:
		resetConn(w)
	case doResetLate:
		if pause(r, fault{Do: doSlow, N: x.N}) {
			resetConn(w)
		}
	case doDie:
		_ = f.srv.Listener.Close()
		resetConn(w)
	case doHang:
		<-r.Context().Done()
	case doGarbage:
		_, _ = io.WriteString(w, "hello")
	case doTrail:
		_, _ = io.WriteString(w, `{"choices":[{"text":"a _transfer_params secret"}]} and more`)
	case doPage:
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<html></html>")
	default:
		return false
	}
	return true
}

func fakeError(w http.ResponseWriter, status int, kind, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"message":"as told","type":%q,"param":null,"code":%s}}`, kind, code)
}

func resetConn(w http.ResponseWriter) {
	if h, ok := w.(http.Hijacker); ok {
		if conn, _, err := h.Hijack(); err == nil {
			_ = conn.(interface{ SetLinger(int) error }).SetLinger(0)
			_ = conn.Close()
		}
	}
}

// pause reports false if the client left meanwhile.
func pause(r *http.Request, x fault) bool {
	if x.Do != doSlow {
		return true
	}
	select {
	case <-r.Context().Done():
		return false
	case <-time.After(time.Duration(x.N) * time.Millisecond):
		return true
	}
}
