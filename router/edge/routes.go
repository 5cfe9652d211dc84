package edge

import (
	"bytes"
	"net/http"
	"strings"

	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/stored"
)

// The paths of the route table. Engines are asked on the table's path, never on the client's bytes.
const (
	pathChat        = "/v1/chat/completions"
	pathCompletions = openai.PathCompletions
	pathResponses   = openai.PathResponses
	pathMessages    = "/v1/messages"
	pathGenerate    = "/inference/v1/generate"
	pathBatch       = "/v1/chat/completions/batch"
	pathModels      = "/v1/models"
	pathRealtime    = "/v1/realtime"
	pathHealth      = "/health"
	pathLive        = "/livez"
	pathReady       = "/readyz"
)

// route is one entry of the route table.
type route struct {
	path, method string
	suffix       string // what follows the name in a path, where a name stands between path and suffix
	does         doing
	shape        openai.Shape // of the body, where there is one that is JSON
}

// String is the route as metrics and the log name it.
func (rt *route) String() string {
	if rt.does == askStored {
		return rt.path + "{id}" + rt.suffix
	}
	return rt.path
}

// doing is what is done with the requests of a route.
type doing uint8

const (
	generate    doing = iota // served by a prefill and a decode engine, or by one
	pass                     // served by one engine, whatever its answer is; the body is JSON
	passForm                 // the same, and the body is a form
	askStored                // served by the engine that holds the response of that id; there is no body
	listModels               // answered here
	oneModel                 // the same
	unsupported              // known, and refused with 501
	liveness                 // answered here, without credentials: 200
	readiness                // the same: 200 if requests are taken, else 503
)

// isProbe reports whether the requests of a route are answered with a status alone, to GET and HEAD.
func (d doing) isProbe() bool { return d == liveness || d == readiness }

// reads reports whether the requests of a route have a body.
func (d doing) reads() bool { return d == generate || d == pass || d == passForm }

// routes is every route without a name in its path: exact bytes, nothing is normalised.
var routes = func() map[string]*route {
	all := map[string]*route{
		pathCompletions: {path: pathCompletions, method: http.MethodPost, does: generate, shape: openai.ShapeCompletions},
		pathChat:        {path: pathChat, method: http.MethodPost, does: generate, shape: openai.ShapeChat},
		pathResponses:   {path: pathResponses, method: http.MethodPost, does: generate, shape: openai.ShapeResponses},
		pathMessages:    {path: pathMessages, method: http.MethodPost, does: generate, shape: openai.ShapeMessages},
		pathGenerate:    {path: pathGenerate, method: http.MethodPost, does: generate, shape: openai.ShapeGenerate},
		pathModels:      {path: pathModels, method: http.MethodGet, does: listModels},
		pathRealtime:    {path: pathRealtime, does: unsupported},
		pathHealth:      {path: pathHealth, method: http.MethodGet, does: liveness},
		pathLive:        {path: pathLive, method: http.MethodGet, does: liveness},
		pathReady:       {path: pathReady, method: http.MethodGet, does: readiness},
	}
	for _, path := range []string{
		"/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank",
		"/tokenize", "/detokenize", "/v1/messages/count_tokens", pathBatch,
		"/v1/chat/completions/render", "/v1/completions/render", "/v1/messages/render", "/v1/responses/render",
		"/v1/chat/completions/derender", "/v1/completions/derender", "/v1/messages/derender", "/v1/responses/derender",
	} {
		all[path] = &route{path: path, method: http.MethodPost, does: pass, shape: openai.ShapePass}
	}
	all[pathBatch].shape = openai.ShapeBatch
	for _, path := range []string{"/v1/audio/transcriptions", "/v1/audio/translations"} {
		all[path] = &route{path: path, method: http.MethodPost, does: passForm}
	}
	return all
}()

// GeneratedShape returns the shape of the bodies of a route that generates text; false if there is no such route.
func GeneratedShape(path string) (openai.Shape, bool) {
	rt := routes[path]
	if rt == nil || rt.does != generate {
		return 0, false
	}
	return rt.shape, true
}

// GenerateRoutes returns the routes that generate text, as metrics name them.
func GenerateRoutes() (names []string) {
	for _, rt := range routes {
		if rt.does == generate {
			names = append(names, rt.String())
		}
	}
	return names
}

// named are the routes with a name in their path, between the path that they have in the table and what follows it.
var named = [...]struct {
	*route
	isName func(string) bool
}{
	{&route{path: pathResponses + "/", suffix: "/cancel", method: http.MethodPost, does: askStored}, stored.IsResponseID},
	{&route{path: pathResponses + "/", method: http.MethodGet, does: askStored}, stored.IsResponseID},
	{&route{path: pathModels + "/", method: http.MethodGet, does: oneModel}, func(s string) bool { return s != "" }},
}

// findRoute finds a request in the route table by its path and method; name is what stands in its path. With an error it
// returns the route that is there, if any.
func findRoute(path []byte, method string) (rt *route, name string, e *openai.Error) {
	rt = routes[string(path)]
	for i := range named {
		if rt != nil {
			break
		}
		n := &named[i]
		rest, under := strings.CutPrefix(string(path), n.path)
		rest, whole := strings.CutSuffix(rest, n.suffix)
		if under && whole && n.isName(rest) {
			rt, name = n.route, rest
		}
	}
	switch {
	case rt == nil:
		return nil, "", openai.NewError(reason.NoRoute, "Not Found")
	case rt.does == unsupported:
		return rt, "", openai.NewError(reason.Unsupported, "The realtime route is not supported.")
	case method != rt.method && (!rt.does.isProbe() || method != http.MethodHead):
		return rt, "", openai.NewError(reason.Method, "Method Not Allowed")
	}
	return rt, name, nil
}

// pathOf is the path of a request target, which may name the host as well, as requests to proxies do.
func pathOf(target []byte) []byte {
	path, _, _ := bytes.Cut(target, []byte("?"))
	if _, rest, absolute := bytes.Cut(path, []byte("://")); absolute && path[0] != '/' {
		if i := bytes.IndexByte(rest, '/'); i >= 0 {
			return rest[i:]
		}
		return []byte("/")
	}
	return path
}

// errorsOf is the shape whose errors the clients of a path expect.
func errorsOf(path string) openai.Shape {
	if path == pathMessages || strings.HasPrefix(path, pathMessages+"/") {
		return openai.ShapeMessages
	}
	return openai.ShapeCompletions
}
