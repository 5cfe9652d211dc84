// Package ui is the page at /ui: what the gateway is doing, and the buttons of administrators. It owns the files of the page and the headers
// that they are served with. The page asks the routes of its own listener for all it shows, with the token that its reader types in; this
// package knows none of them. internal/gateway serves it.
package ui

import (
	"embed"
	"io/fs"
	"net/http"
	"strings"
)

//go:embed static
var files embed.FS

// policy lets the page load its own files and ask its own listener, and nothing else. Text becomes no markup: a browser that knows Trusted
// Types refuses the assignments that could do that.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Handler serves the page at /ui/, without a token as it tells nothing, and leaves every other path to next.
func Handler(next http.Handler) http.Handler {
	static, err := fs.Sub(files, "static")
	if err != nil {
		panic(err) // the folder is embedded
	}
	page := http.StripPrefix("/ui/", http.FileServerFS(static))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest, ok := strings.CutPrefix(r.URL.Path, "/ui")
		switch {
		case !ok || rest != "" && rest[0] != '/':
			next.ServeHTTP(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "want GET", http.StatusMethodNotAllowed)
		case rest == "":
			w.Header().Set("Location", "ui/") // relative: a proxy may have the listener below a path
			w.WriteHeader(http.StatusTemporaryRedirect)
		default:
			h := w.Header()
			h.Set("Content-Security-Policy", policy)
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cross-Origin-Opener-Policy", "same-origin")
			h.Set("Cross-Origin-Resource-Policy", "same-origin")
			h.Set("Cache-Control", "no-cache")
			page.ServeHTTP(w, r)
		}
	})
}
