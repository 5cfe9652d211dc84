package router

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet/health"
	"pdrouter/router/upstream"
)

// engine is one engine and what the router knows of it. It is safe for concurrent use.
type engine struct {
	name      string
	rankOf    string // the entry's name; "" of an engine that is no data-parallel rank
	origin    origin
	model     string
	control   string
	publishes bool // records of its own, with its generation in them
	up        *upstream.Client
	client    *http.Client               // of the control routes
	tls       atomic.Pointer[tls.Config] // of connections to come; nil: the default
	header    []upstream.Field           // sent with every request: content type, accept, the engine's own credential
	inFlight  atomic.Int64
	streaming atomic.Int64         // of them, streams that have brought tokens
	supplied  atomic.Int64         // of them, decode legs that are no streams and have their KV, as a look has shown
	overdue   atomic.Int64         // of them, decode legs whose KV should have come, and that have not shown it
	backlog   atomic.Int64         // tokens of prompts that it has yet to compute, of models whose policy looks at that
	held      atomic.Pointer[held] // as what it stands in the index of prefixes; nil if it does not
	failures  atomic.Int32         // connect failures and failed health checks in a row
	silence   atomic.Int64         // when a connection that was not answered was counted last, in Unix nanoseconds
	limit     atomic.Int32         // of them, from which the engine is unusable
	down      atomic.Bool
	refuses   atomic.Bool // its last failure was a refused connection: nothing listens there
	progress  atomic.Bool // a request on it has made progress since the last health check began
	proven    atomic.Bool // it has answered
	vitals    health.State
	handing   handing       // of a prefill engine
	draining  atomic.Bool   // it takes no more requests
	recheck   chan struct{} // has room for one: its health is to be checked now
	relist    chan struct{} // the same: it is up again, and may serve something else
	followed  atomic.Bool   // its event stream is open
	streams   atomic.Uint64 // how often that stream began, broke or had a gap
	// generation counts the starts of an engine that does not publish its own: it grows whenever another run of the
	// engine is seen, so that whatever was known of its earlier start is void.
	generation atomic.Uint64
	coord      atomic.Pointer[connector.PrefillEndpoint] // of a stock prefill engine that has answered; nil until then
	bootstrap  connector.Bootstrap                       // connector sglang; without a room
	side       *side                                     // of a stock engine; nil of others
	reported   atomic.Pointer[reported]                  // what it says that it serves; nil until it has
}

// origin is all of a configuration that an engine was made from: engines of one origin are the same.
type origin struct {
	entry     config.Engine
	model     string
	connector connector.Connector
	role      metadata.Role
	key       string // what stood in the entry's key file
	rank      int    // data-parallel
}

func newEngine(ec config.Engine, rank int, m *model, role metadata.Role, cfg config.Config, keys *config.Secrets, control *http.Client) (*engine, error) {
	conn := m.conn
	from := origin{entry: ec, model: m.name, connector: conn, role: role}
	from.entry.Drain = false
	up, err := upstream.New(ec.URL, upstream.Config{})
	if err != nil {
		return nil, err
	}
	e := &engine{name: ec.Name, model: m.name, control: strings.TrimSuffix(ec.Control, "/"), up: up, recheck: make(chan struct{}, 1), relist: make(chan struct{}, 1)}
	if e.client = control; ec.TLS != (config.TLS{}) {
		e.client = newControlClient(e.dialControl)
	}
	e.bound(cfg)
	e.generation.Store(1)
	e.draining.Store(ec.Drain)
	e.publishes = conn.Traits().Publishes
	e.bootstrap = connector.BootstrapOf(ec.URL, ec.BootstrapPort)
	if conn.Traits().Stock != nil {
		e.side = newSide(ec)
	}
	e.header = []upstream.Field{{Name: "Content-Type", Value: "application/json"}}
	if ec.KeyFile != "" {
		if from.key, err = keys.Read("key_file", ec.KeyFile); err != nil {
			return nil, err
		}
		e.header = append(e.header, upstream.Field{Name: "Authorization", Value: "Bearer " + from.key})
	}
	if ec.DataParallel > 1 {
		from.rank = rank
		e.header = append(e.header, upstream.Field{Name: rankHeader, Value: strconv.Itoa(rank)})
	}
	e.origin = from
	return e, nil
}

// bound has the engine go by this configuration's bounds, whichever it was made from.
func (e *engine) bound(cfg config.Config) {
	e.limit.Store(int32(cfg.Limits.Failures))
	e.up.SetLimits(cfg.Timeouts.Connect, cfg.Limits.IdlePer)
}

// usable reports whether the engine may be given requests.
func (e *engine) usable() bool { return !e.down.Load() && !e.draining.Load() }

// secure sets the TLS configuration of connections to come; nil is the default.
func (e *engine) secure(t *tls.Config) {
	e.tls.Store(t)
	e.up.SetTLS(t)
}

// dialControl connects to the engine's control routes.
func (e *engine) dialControl(ctx context.Context, network, address string) (net.Conn, error) {
	d := tls.Dialer{Config: e.tls.Load()}
	return d.DialContext(ctx, network, address)
}

// newControlClient returns a client of engines' control routes. dial makes its TLS connections; nil is the default.
func newControlClient(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	return &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: 5 * time.Second, DialTLSContext: dial},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it bears a token
	}
}

// scheduler is the label by which stock engines tell one data-parallel rank's samples from another's; empty for all that there are.
func (e *engine) scheduler() string {
	if e.rankOf == "" {
		return ""
	}
	return `engine="` + strconv.Itoa(e.origin.rank) + `"`
}

// rankHeader is how stock engines are told which of their data-parallel ranks is to serve a request. What a client sends under
// this name never reaches them.
const rankHeader = "X-Data-Parallel-Rank"

// wake wakes the reader of a channel that has room for one, now or when it reads. It never blocks.
func wake(reader chan<- struct{}) {
	select {
	case reader <- struct{}{}:
	default:
	}
}
