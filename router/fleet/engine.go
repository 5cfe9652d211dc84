package fleet

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"pdrouter/internal/background"
	"pdrouter/metadata"
	"pdrouter/policies"
	"pdrouter/policies/blocks"
	"pdrouter/policies/forecast"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/fleet/health"
	"pdrouter/router/upstream"
)

// Engine is one engine, or one data-parallel rank of an engine, and what the gateway knows of it. It is safe for concurrent use.
type Engine struct {
	// Who it is and how it is reached. This never changes.
	Name          string
	RankOf        string // the name of the entry; "" of an engine that is no data-parallel rank
	Model         string
	Origin        Origin
	Publishes     bool             // records of its own, with its generation in them
	Header        []upstream.Field // sent with every request: content type and the credential of the engine
	Upstream      *upstream.Client
	ControlURL    string
	ControlClient *http.Client
	tls           atomic.Pointer[tls.Config] // of connections to come; nil: the default
	Bootstrap     connector.Bootstrap        // connector sglang; without a room

	inUse                    // what this gateway has there now
	others       others      // what other gateways have there
	reports      reports     // what it says of its requests itself
	reachability             // whether it takes connections
	run                      // which run of it answers, and what that run says
	Draining     atomic.Bool // it takes no more requests
	placement    atomic.Pointer[policies.Placement]
	forecast     *forecast.Engine
	kvEvents     atomic.Pointer[config.KVEvents]
	Health       health.State
	HandOff      HandOff // of a prefill engine
	TokenIDs     TokenIDs
}

// inUse is what this gateway has at an engine now.
type inUse struct {
	InFlight  atomic.Int64 // legs
	begun     atomic.Int64 // legs since the start
	most      atomic.Int64 // legs at once since the last call of mostLegs
	Streaming atomic.Int64 // of them, streams that have brought tokens
	Supplied  atomic.Int64 // of them, decode legs without a stream whose KV has come, as the engine's load has shown
	Overdue   atomic.Int64 // of them, decode legs whose KV is overdue
	// Uncollected counts requests whose KV it has, or will have, and that has not come to a decode engine yet, as far as is known.
	Uncollected atomic.Int64
	Backlog     atomic.Int64              // prompt tokens that it has yet to compute, for models whose policy uses prefixes
	slot        atomic.Pointer[cacheSlot] // its place in the prefix index; nil if it has none

	holder atomic.Pointer[blocks.Holder] // its place in the index of blocks; nil if its blocks are not known
}

// Enter counts a leg that begins. It is in flight until InFlight is decremented.
func (u *inUse) Enter() {
	n := u.InFlight.Add(1)
	u.begun.Add(1)
	for most := u.most.Load(); n > most && !u.most.CompareAndSwap(most, n); {
		most = u.most.Load()
	}
}

// Busy reports whether requests need the engine: it works on legs, or has KV that has not come to decode.
func (u *inUse) Busy() bool { return u.InFlight.Load() > 0 || u.Uncollected.Load() > 0 }

// Origin is all of a configuration that an engine was made from: engines of one origin are the same.
type Origin struct {
	Entry     config.Engine
	model     string
	Connector connector.Connector
	Role      metadata.Role
	key       string // the content of the key file of the entry
	rank      int    // data-parallel
}

func newEngine(ec config.Engine, rank int, m *Model, role metadata.Role, cfg config.Config, keys *config.Secrets, control *http.Client) (*Engine, error) {
	conn := m.Connector
	from := Origin{Entry: ec, model: m.Name, Connector: conn, Role: role}
	from.Entry.Drain, from.Entry.Placement, from.Entry.KVEvents = false, config.Placement{}, config.KVEvents{} // they may change while it serves
	up, err := upstream.New(ec.URL)
	if err != nil {
		return nil, err
	}
	e := &Engine{Name: ec.Name, Model: m.Name, forecast: m.Forecast.NewEngine(), ControlURL: strings.TrimSuffix(ec.Control, "/"), Upstream: up}
	e.Recheck, e.Relist = make(chan struct{}, 1), make(chan struct{}, 1)
	if e.ControlClient = control; ec.TLS != (config.TLS{}) {
		e.ControlClient = NewControlClient(e.dialControl)
	}
	e.setLimits(cfg)
	e.Generation.Store(1)
	e.Draining.Store(ec.Drain)
	e.placement.Store(placementOf(ec.Placement))
	e.Publishes = conn.Traits().Publishes
	e.Bootstrap = connector.BootstrapOf(ec.URL, ec.BootstrapPort)
	if conn.Traits().Stock != nil {
		e.Channel = newChannelState(ec)
	}
	e.Header = []upstream.Field{{Name: "Content-Type", Value: "application/json"}}
	if ec.BearerTokenFile != "" {
		if from.key, err = keys.Read("bearer_token_file", ec.BearerTokenFile); err != nil {
			return nil, err
		}
		e.Header = append(e.Header, upstream.Field{Name: "Authorization", Value: "Bearer " + from.key})
	}
	if ec.DataParallel > 1 {
		from.rank = rank
		e.Header = append(e.Header, upstream.Field{Name: RankHeader, Value: strconv.Itoa(rank)})
	}
	e.Origin = from
	return e, nil
}

// placementOf returns what policies may know of an engine's placement; nil if nothing is configured.
func placementOf(p config.Placement) *policies.Placement {
	if p == (config.Placement{}) {
		return nil
	}
	out := &policies.Placement{Zone: p.Zone, PromptTokens: [2]int{p.PromptTokens.Min, p.PromptTokens.Max}}
	if p.Weight != nil {
		out.Weight = *p.Weight
	}
	return out
}

// setLimits applies the limits of the current configuration to the engine.
func (e *Engine) setLimits(cfg config.Config) {
	e.failureLimit.Store(int32(cfg.Limits.Failures))
	e.Upstream.SetLimits(cfg.Timeouts.Connect, cfg.Limits.IdlePer)
}

// Usable reports whether the engine may be given requests.
func (e *Engine) Usable() bool { return !e.Down.Load() && !e.Draining.Load() }

// secure sets the TLS configuration of connections to come; nil is the default.
func (e *Engine) secure(t *tls.Config) {
	e.tls.Store(t)
	e.Upstream.SetTLS(t)
}

// dialControl connects to the engine's control routes.
func (e *Engine) dialControl(ctx context.Context, network, address string) (net.Conn, error) {
	d := tls.Dialer{Config: e.tls.Load()}
	return d.DialContext(ctx, network, address)
}

// NewControlClient returns a client of engines' control routes. dial makes its TLS connections; nil is the default.
func NewControlClient(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	return &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: 5 * time.Second, DialTLSContext: dial},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it bears a token
	}
}

// SchedulerLabel is the label by which stock engines tell one data-parallel rank's samples from another's; empty for all that there are.
func (e *Engine) SchedulerLabel() string {
	if e.RankOf == "" {
		return ""
	}
	return `engine="` + strconv.Itoa(e.Origin.rank) + `"`
}

// RankHeader is how stock engines are told which of their data-parallel ranks is to serve a request. What a client sends under
// this name never reaches them.
const RankHeader = "X-Data-Parallel-Rank"

// AskModels has the engine asked soon what it serves.
func (e *Engine) AskModels() { background.Notify(e.Relist) }

// Credential is what the engine is shown as a bearer token; "" if it is shown none.
func (e *Engine) Credential() string {
	for _, f := range e.Header {
		if f.Name == "Authorization" {
			return strings.TrimPrefix(f.Value, "Bearer ")
		}
	}
	return ""
}
