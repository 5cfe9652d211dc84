package router

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"pdrouter/metadata"
)

// The connectors a model may name: who moves the KV blocks from prefill to decode.
const (
	ConnectorPush    = "vllm-nixl-push" // stock vLLM's NixlPushConnector: both legs at once
	ConnectorPull    = "vllm-nixl-pull" // stock vLLM's NixlConnector: prefill, then decode
	ConnectorKVPlane = "kvplane"        // pdrouter's own data plane: both legs at once
	ConnectorNone    = "none"           // aggregated engines: nothing is moved
)

// Config is the router's part of the configuration file. It is read once and never changed.
type Config struct {
	// Models are the models that are served, each with its engines. At least one.
	Models []Model `yaml:"models"`
	// Timeouts bound every wait.
	Timeouts Timeouts `yaml:"timeouts"`
	// Limits bound every size and count.
	Limits Limits `yaml:"limits"`
	// Strict refuses a body that carries kv_transfer_params with 400 instead of dropping the field. Default false.
	Strict bool `yaml:"strict"`
}

// Model is one served model and the engines that hold it.
type Model struct {
	// Name is what clients put into the field "model".
	Name string `yaml:"name"`
	// Connector is vllm-nixl-push, vllm-nixl-pull, kvplane or none. Default none.
	Connector string `yaml:"connector"`
	// Prefill and Decode are the engines of either stage; for every connector but none.
	Prefill []Engine `yaml:"prefill"`
	Decode  []Engine `yaml:"decode"`
	// Engines are the aggregated engines of connector none.
	Engines []Engine `yaml:"engines"`
}

// Engine is one serving instance.
type Engine struct {
	// Name is stable over restarts and chosen by the operator, for example "prefill-0".
	Name string `yaml:"name"`
	// URL is the base URL of the engine's OpenAI routes, for example "http://10.0.0.7:8000".
	URL string `yaml:"url"`
	// Control is the base URL of the engine's control routes; connector kvplane only, optional: without it there
	// are no books and a cancel is only the closing of both legs.
	Control string `yaml:"control"`
	// SideChannel is host:port of the engine's handshake side channel; connectors vllm-nixl-push and vllm-nixl-pull only,
	// optional. A prefill engine reports its own, which is used if this is empty; for a decode engine that is compared with
	// prefill before anything is sent to it, and looked at.
	SideChannel string `yaml:"side_channel"`
	// KeyFile is a file with the credential that the engine wants as a bearer token. Default: none is sent.
	KeyFile string `yaml:"key_file"`
}

// Timeouts are the router's waits. Zero means the default.
type Timeouts struct {
	Connect  time.Duration `yaml:"connect"`  // dialling an engine; default 2s
	Read     time.Duration `yaml:"read"`     // a client's head and body; default 30s
	Idle     time.Duration `yaml:"idle"`     // a client's connection between two requests; default 75s
	Write    time.Duration `yaml:"write"`    // one write to a client; default 30s
	Request  time.Duration `yaml:"request"`  // arrival to first token of a stream, all attempts together; default 120s
	Answer   time.Duration `yaml:"answer"`   // arrival to an answer that is not streamed, all attempts together; default 600s
	Prefill  time.Duration `yaml:"prefill"`  // one prefill leg; default 60s
	Transfer time.Duration `yaml:"transfer"` // prefill's answer to decode's first token, or to the KV if it is not streamed and the engines tell; default 10s
	Stream   time.Duration `yaml:"stream"`   // two events of one answer; default 120s
	Pair     time.Duration `yaml:"pair"`     // a request parked for a pair's handshake; default 30s
	Probe    time.Duration `yaml:"probe"`    // one handshake or probe, off the request path; default 60s
	Ending   time.Duration `yaml:"ending"`   // a leg that runs on after its request has ended; default 60s
	Drain    time.Duration `yaml:"drain"`    // requests in flight at shutdown; default 30s
	Health   time.Duration `yaml:"health"`   // between two health checks of an engine; default 2s
	// SideChannel is between two looks at a stock engine's side channel, and the time of each; default 5s.
	SideChannel time.Duration `yaml:"side_channel"`
}

// Limits are the router's bounds. Zero means the default.
type Limits struct {
	Body       int `yaml:"body"`        // bytes of a request body; default 32 MiB
	Answer     int `yaml:"answer"`      // bytes of an answer that is not streamed; default 64 MiB
	Event      int `yaml:"event"`       // bytes of one server-sent event; default 4 MiB
	Attempts   int `yaml:"attempts"`    // dispatches of one request; default 3
	Failures   int `yaml:"failures"`    // connect failures in a row that make an engine unusable; default 2
	N          int `yaml:"n"`           // choices of one request; default 16
	Prompts    int `yaml:"prompts"`     // prompts in one body; default 64
	Stop       int `yaml:"stop"`        // stop strings; default 4
	Logprobs   int `yaml:"logprobs"`    // logprobs and top_logprobs; default 20
	Recent     int `yaml:"recent"`      // finished requests kept for /requests; default 256
	Background int `yaml:"background"`  // legs running on after their requests, over all engines; default 1024
	Concurrent int `yaml:"concurrent"`  // client connections at once; default 65536
	IdlePer    int `yaml:"idle_engine"` // idle connections kept per engine; default 256
	// Handshakes of pairs at once, over all engines. A quarter, one at least where there is more than one, is kept for pairs
	// that requests wait for. Default 16.
	Handshakes int `yaml:"handshakes"`
	// HandshakesPerEngine is how many of them may be with one engine; of these a quarter is kept as well. Default 4.
	HandshakesPerEngine int `yaml:"handshakes_per_engine"`
}

// withDefaults returns the configuration with every zero replaced by its default. The models are copied.
func (c Config) withDefaults() Config {
	d := func(t *time.Duration, v time.Duration) {
		if *t == 0 {
			*t = v
		}
	}
	n := func(t *int, v int) {
		if *t == 0 {
			*t = v
		}
	}
	t, l := &c.Timeouts, &c.Limits
	d(&t.Connect, 2*time.Second)
	d(&t.Read, 30*time.Second)
	d(&t.Idle, 75*time.Second)
	d(&t.Write, 30*time.Second)
	d(&t.Request, 120*time.Second)
	d(&t.Answer, 600*time.Second)
	d(&t.Prefill, 60*time.Second)
	d(&t.Transfer, 10*time.Second)
	d(&t.Stream, 120*time.Second)
	d(&t.Pair, 30*time.Second)
	d(&t.Probe, 60*time.Second)
	d(&t.Ending, 60*time.Second)
	d(&t.Drain, 30*time.Second)
	d(&t.Health, 2*time.Second)
	d(&t.SideChannel, 5*time.Second)
	n(&l.Body, 32<<20)
	n(&l.Answer, 64<<20)
	n(&l.Event, 4<<20)
	n(&l.Attempts, 3)
	n(&l.Failures, 2)
	n(&l.N, 16)
	n(&l.Prompts, 64)
	n(&l.Stop, 4)
	n(&l.Logprobs, 20)
	n(&l.Recent, 256)
	n(&l.Background, 1024)
	n(&l.Concurrent, 65536)
	n(&l.IdlePer, 256)
	n(&l.Handshakes, 16)
	n(&l.HandshakesPerEngine, 4)
	models := make([]Model, len(c.Models))
	copy(models, c.Models)
	for i := range models {
		if models[i].Connector == "" {
			models[i].Connector = ConnectorNone
		}
	}
	c.Models = models
	return c
}

// Validate reports every mistake of the configuration, each beginning with its dotted key. Zero values stand for
// their defaults and are no mistakes.
func (c Config) Validate() error {
	c = c.withDefaults()
	var v faults
	if len(c.Models) == 0 {
		v.add("models", "is empty", "at least one model")
	}
	names := make(map[string]bool, len(c.Models))
	engines := make(map[string]string)
	for i, m := range c.Models {
		key := fmt.Sprintf("models[%d]", i)
		switch {
		case m.Name == "":
			v.add(key+".name", "is empty", "the name clients ask for")
		case names[m.Name]:
			v.add(key+".name", fmt.Sprintf("is %q again", m.Name), "a name of its own")
		}
		names[m.Name] = true
		m.validate(key, engines, &v)
	}
	c.Timeouts.validate(&v)
	c.Limits.validate(&v)
	return errors.Join(v...)
}

// validate checks one model. engines maps the name of each engine seen to where it was.
func (m Model) validate(key string, engines map[string]string, v *faults) {
	switch m.Connector {
	case ConnectorPush, ConnectorPull, ConnectorKVPlane:
		if len(m.Prefill) == 0 {
			v.add(key+".prefill", "is empty", "at least one engine for connector "+m.Connector)
		}
		if len(m.Decode) == 0 {
			v.add(key+".decode", "is empty", "at least one engine for connector "+m.Connector)
		}
		if len(m.Engines) != 0 {
			v.add(key+".engines", "is set", "prefill and decode for connector "+m.Connector)
		}
	case ConnectorNone:
		if len(m.Engines) == 0 {
			v.add(key+".engines", "is empty", "at least one engine for connector none")
		}
		if len(m.Prefill)+len(m.Decode) != 0 {
			v.add(key+".prefill", "or decode is set", "engines for connector none")
		}
	default:
		v.add(key+".connector", fmt.Sprintf("is %q", m.Connector), "vllm-nixl-push, vllm-nixl-pull, kvplane or none")
	}
	for _, list := range []struct {
		key     string
		engines []Engine
	}{{"prefill", m.Prefill}, {"decode", m.Decode}, {"engines", m.Engines}} {
		for i, e := range list.engines {
			at := fmt.Sprintf("%s.%s[%d]", key, list.key, i)
			if e.Name == "" {
				v.add(at+".name", "is empty", "a stable name")
			} else if metadata.ValidName(e.Name) != nil {
				v.add(at+".name", fmt.Sprintf("is %.140q", e.Name), "letters, digits, '.', '_' and '-'")
			} else if was, ok := engines[e.Name]; ok {
				v.add(at+".name", fmt.Sprintf("is %q, the name of %s", e.Name, was), "a name of its own")
			} else {
				engines[e.Name] = at
			}
			v.url(at+".url", e.URL, true)
			v.url(at+".control", e.Control, false)
			if e.Control != "" && m.Connector != ConnectorKVPlane {
				v.add(at+".control", "is set", "no control routes for connector "+m.Connector)
			}
			v.sideChannel(at+".side_channel", e.SideChannel, m.Connector)
		}
	}
}

func (t Timeouts) validate(v *faults) {
	for _, f := range []struct {
		key string
		d   time.Duration
	}{
		{"connect", t.Connect}, {"read", t.Read}, {"idle", t.Idle}, {"write", t.Write}, {"request", t.Request}, {"answer", t.Answer},
		{"prefill", t.Prefill}, {"transfer", t.Transfer}, {"stream", t.Stream}, {"pair", t.Pair}, {"probe", t.Probe},
		{"ending", t.Ending}, {"drain", t.Drain}, {"health", t.Health},
		{"side_channel", t.SideChannel},
	} {
		if f.d < 0 {
			v.add("timeouts."+f.key, "is "+f.d.String(), "more than 0")
		}
	}
}

func (l Limits) validate(v *faults) {
	for _, f := range []struct {
		key string
		n   int
	}{
		{"body", l.Body}, {"answer", l.Answer}, {"event", l.Event}, {"attempts", l.Attempts}, {"failures", l.Failures},
		{"n", l.N}, {"prompts", l.Prompts}, {"stop", l.Stop}, {"logprobs", l.Logprobs}, {"recent", l.Recent},
		{"background", l.Background}, {"concurrent", l.Concurrent}, {"idle_engine", l.IdlePer},
		{"handshakes", l.Handshakes}, {"handshakes_per_engine", l.HandshakesPerEngine},
	} {
		if f.n < 0 {
			v.add("limits."+f.key, fmt.Sprintf("is %d", f.n), "more than 0")
		}
	}
}

// faults collects the mistakes of a configuration.
type faults []error

func (v *faults) add(key, is, want string) {
	*v = append(*v, fmt.Errorf("%s %s; want %s", key, is, want))
}

// sideChannel checks the address of a stock engine's side channel.
func (v *faults) sideChannel(key, s, connector string) {
	if s == "" {
		return
	}
	if connector != ConnectorPush && connector != ConnectorPull {
		v.add(key, "is set", "no side channel for connector "+connector)
		return
	}
	host, port, err := net.SplitHostPort(s)
	if n, perr := strconv.Atoi(port); err != nil || host == "" || perr != nil || n < 1 || n > 65535 {
		v.add(key, fmt.Sprintf("is %q", s), "host:port, such as 10.0.0.7:5600")
	}
}

// url checks that s is the base URL of an HTTP server.
func (v *faults) url(key, s string, required bool) {
	if s == "" {
		if required {
			v.add(key, "is empty", "a base URL such as http://10.0.0.7:8000")
		}
		return
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		v.add(key, fmt.Sprintf("is %q", s), "a base URL such as http://10.0.0.7:8000")
		return
	}
	if port, err := strconv.Atoi(u.Port()); u.Port() != "" && (err != nil || port < 1 || port > 65535) {
		v.add(key, fmt.Sprintf("is %q", s), "a port from 1 to 65535")
	}
}
