package gateway

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"pdrouter/auth"
	"pdrouter/internal/adminapi"
)

// refuseBrowser answers a request that a browser may have sent on behalf of a foreign web page.
func refuseBrowser(w http.ResponseWriter, r *http.Request, reason, message string, log *slog.Logger) {
	log.Warn("browser request refused", "method", r.Method, "path", r.URL.Path, "remote", r.RemoteAddr, "host", r.Host,
		"origin", r.Header.Get("Origin"), "reason", reason)
	(&adminapi.Error{Status: http.StatusForbidden, Reason: reason, Msg: message}).Write(w)
}

// sameOrigin refuses state-changing requests that a browser sends for a page of another origin, as its Sec-Fetch-Site or
// Origin header says. Requests without either header do not come from a browser and pass.
func sameOrigin(h http.Handler, log *slog.Logger) http.Handler {
	p := http.NewCrossOriginProtection()
	p.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuseBrowser(w, r, "cross_origin", "cross-origin requests are not accepted", log)
	}))
	return p.Handler(h)
}

// loopbackHosts refuses requests over loopback whose Host is neither an IP address nor localhost, as long as current returns
// nil: no authentication. A foreign web page can give a name of its own the address 127.0.0.1 (DNS rebinding). The browser
// then takes this listener for a part of that page, and only Host tells.
func loopbackHosts(current func() *auth.Admins, h http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if current() == nil && overLoopback(r) && !localHost(r.Host) {
			refuseBrowser(w, r, "host", fmt.Sprintf(
				"Host is %.100q; without auth.admins only an IP address or localhost is accepted over loopback", r.Host), log)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// overLoopback reports whether the request's connection was accepted at a loopback address.
func overLoopback(r *http.Request) bool {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && at.IP.IsLoopback()
}

// localHost reports whether the value of a Host header is an IP address or localhost, with or without a port. An HTTP/1.0
// client may send none; browsers always do.
func localHost(host string) bool {
	if host == "" {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	_, err := netip.ParseAddr(host)
	return err == nil || strings.EqualFold(host, "localhost")
}
