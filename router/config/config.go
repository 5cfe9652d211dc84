// Package config is what an operator can set for the gateway: models with their engines, timeouts, limits, health.
//
// It owns the types of these sections of the configuration file, their defaults and their checks, and it reads the files with
// credentials and certificates that entries of engines name (Secrets, TLS). docs/configuration.md is generated from the comments here.
// It does not read the configuration file, which internal/configfile does, and it starts nothing: package fleet makes a fleet of it. A
// Config is never changed once it was checked; a reload makes another.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"pdrouter/internal/field"
	"pdrouter/metadata"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
)

// Config is the router's part of the configuration file. It is read once and never changed.
type Config struct {
	// Models are the models that are served, each with its engines. At least one.
	Models []Model `yaml:"models"`
	// Timeouts bound every wait.
	Timeouts Timeouts `yaml:"timeouts"`
	// Limits bound every size and count.
	Limits Limits `yaml:"limits"`
	// Health says when an engine gets no requests though it can be reached.
	Health Health `yaml:"health"`
	// Priorities are the priorities of waiting requests, by the name of the tenant they are counted under. A higher one goes first:
	// one step is worth one second of waiting. From -100 to 100; default 0.
	Priorities map[string]int `yaml:"priorities"`
	// Queue says which of the requests that wait goes next.
	Queue Queue `yaml:"queue"`
	// Migration moves the KV of conversations to other engines.
	Migration Migration `yaml:"migration"`
	// Strict refuses a body that carries kv_transfer_params with 400 instead of dropping the field. Default false.
	Strict bool `yaml:"strict"`
	// Media says which media URLs bodies may contain.
	Media Media `yaml:"media"`
	// IsolatePrefixCache separates tenants in the engines' prefix caches. Every body gets a cache_salt made of the tenant and of the
	// client's own salt, and the uuid of media is replaced in the same way. Default false: the client's own values, if any, are sent
	// unchanged.
	IsolatePrefixCache bool `yaml:"isolate_prefix_cache"`
	// PrefixCacheSecretFile is a file with the secret for these salts, at least 32 bytes. It must be the same for all gateways in front
	// of the same engines. Default "": each gateway draws a secret when it starts, and no request hits what was cached through another
	// gateway.
	PrefixCacheSecretFile string `yaml:"prefix_cache_secret_file"`
	// Growing says that engines may be added while the router runs, so that an empty list is allowed. It is no key of the file.
	Growing bool `yaml:"-"`
}

// Model is one served model and the engines that hold it.
type Model struct {
	// Name is what clients put into the field "model".
	Name string `yaml:"name"`
	// Connector is vllm-nixl-push, vllm-nixl-pull, kvplane, sglang or none. Default none.
	Connector string `yaml:"connector"`
	// ForwardAuthorization sends the Authorization of each client to the engines, instead of a credential of the gateway (bearer_token_file).
	// Default false: engines never see it.
	ForwardAuthorization bool `yaml:"forward_authorization"`
	// RetokenizeOnDecode has decode engines render and tokenise the messages of every chat themselves; connector vllm-nixl-pull only. Default
	// false: prefill is asked for the prompt's token ids, and decode is sent them (vLLM 0.27.0 or newer; older engines ignore them). The
	// answers are the same. Set it if both engines cannot have the same tokenizer and chat template.
	RetokenizeOnDecode bool `yaml:"retokenize_on_decode"`
	// FirstToken is the engine whose first token clients of streams get; connector vllm-nixl-pull only. "decode" (default): decode's. "prefill":
	// prefill's, at once, while the KV moves and decode goes on after it, for requests where the answer is the same as one engine's; decode's
	// for the others. Both engines must have the same tokenizer. It is not for engines with a reasoning parser that reads text, nor for those
	// that bound the answer's tokens by a default of their own (max_new_tokens).
	FirstToken string `yaml:"first_token"`
	// MaxConcurrentRequests is how many requests may be with the model's engines at once; others wait. Default limits.max_concurrent_requests for each
	// decode engine that takes requests.
	MaxConcurrentRequests int `yaml:"max_concurrent_requests"`
	// The engines of one role; models[].prefill[] and models[].decode[] have the same keys. For every connector but none.
	Prefill []Engine `yaml:"prefill"`
	Decode  []Engine `yaml:"decode"`
	// Engines are the aggregated engines of connector none. For vllm-nixl-pull and kvplane they are engines of either role: each request may
	// have any of them for prefill and another for decode, or one of them serves it alone. They may stand beside prefill and decode.
	Engines []Engine `yaml:"engines"`
	// PrefillFrom, DecodeFrom and EnginesFrom name a source of more engines, beside each list or instead of it.
	PrefillFrom Source `yaml:"prefill_from"`
	DecodeFrom  Source `yaml:"decode_from"`
	EnginesFrom Source `yaml:"engines_from"`
}

// The values of Model.FirstToken.
const (
	FirstTokenDecode  = "decode"
	FirstTokenPrefill = "prefill"
)

// Engine is one serving instance.
type Engine struct {
	// Name is stable over restarts and chosen by the operator, for example "prefill-0".
	Name string `yaml:"name"`
	// URL is the base URL of the engine's OpenAI routes, without /v1, for example "http://10.0.0.7:8000".
	URL string `yaml:"url"`
	// Control is the base URL of the engine's control routes; connector kvplane only, optional. Without it the engine reports no
	// transfers, and a cancel only closes both legs.
	Control string `yaml:"control"`
	// SideChannel is host:port of the engine's handshake side channel; connectors vllm-nixl-push and vllm-nixl-pull only,
	// optional. If it is empty, the address that a prefill engine reports is used. A decode engine's side channel is checked regularly,
	// and its answer is compared with prefill's before anything is sent to the pair.
	SideChannel string `yaml:"side_channel"`
	// BearerTokenFile is a file with the bearer token for the engine. Default: none is sent.
	BearerTokenFile string `yaml:"bearer_token_file"`
	// TLS is for an engine with an https URL. Default: the system's CAs, no client certificate.
	TLS TLS `yaml:"tls"`
	// Drain lets the engine finish the requests that it has, and sends it no more. Default false.
	Drain bool `yaml:"drain"`
	// BootstrapPort is the port of a prefill engine's bootstrap server, on the host of its URL; connector sglang only. Default
	// 8998.
	BootstrapPort int `yaml:"bootstrap_port"`
	// RequestIDRandomizationDisabled says that the engine runs with VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1, so that its internal request ids are
	// those that it was sent; connectors vllm-nixl-push and vllm-nixl-pull only. Without it the gateway cannot always name the requests
	// that have ended, and so cannot always free the KV that such an engine holds for them. Default false.
	RequestIDRandomizationDisabled bool `yaml:"request_id_randomization_disabled"`
	// TensorParallel is how many tensor-parallel ranks a decode engine has, as it does not report that; connectors vllm-nixl-push and
	// vllm-nixl-pull only. A number above the engine's own crashes its side channel. Default 1.
	TensorParallel int `yaml:"tensor_parallel"`
	// DataParallel is how many data-parallel ranks the engine serves at its URL; connectors vllm-nixl-push, vllm-nixl-pull and none. With
	// more than 1 the gateway treats each rank as an engine, called <name>.dp<rank>: the policy chooses it, and a header addresses it.
	// side_channel is that of rank 0, and each further rank uses the next port. Default: the engine itself chooses the rank.
	DataParallel int `yaml:"data_parallel"`
	// Revision names the version of the weights and of the engine, for example the revision of a rollout. Prefill and decode engines of
	// different revisions are never paired, and no stream that one has begun is continued by another. Default: not known, which fits every
	// revision.
	Revision string `yaml:"revision"`
	// KVEvents is where the engine publishes which blocks its prefix cache holds. A change takes effect without a break for the engine's
	// requests.
	KVEvents KVEvents `yaml:"kv_events"`
	// Placement is what policies may use of the engine. A change takes effect without a break for the engine's requests.
	Placement `yaml:",inline"`
}

// WithDefaults returns the configuration with every zero replaced by its default. The models are copied.
func (c Config) WithDefaults() Config {
	c.Timeouts, c.Limits, c.Health, c.Queue, c.Migration = c.Timeouts.withDefaults(), c.Limits.withDefaults(), c.Health.withDefaults(), c.Queue.withDefaults(), c.Migration.withDefaults()
	models := make([]Model, len(c.Models))
	copy(models, c.Models)
	for i := range models {
		if models[i].Connector == "" {
			models[i].Connector = connector.Default
		}
	}
	c.Models = models
	return c
}

// Validate reports every mistake of the configuration, each beginning with its dotted key. Zero values stand for
// their defaults and are no mistakes.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var v faults
	if len(c.Models) == 0 {
		v.add("models", "is empty", "at least one model")
	}
	names := make(map[string]bool, len(c.Models))
	engines, endpoints := make(map[string]bool), make(map[string]bool)
	for i, m := range c.Models {
		key := fmt.Sprintf("models[%d]", i)
		switch {
		case m.Name == "":
			v.add(key+".name", "is empty", "the name clients ask for")
		case names[m.Name]:
			v.add(key+".name", fmt.Sprintf("is %q again", m.Name), "a name of its own")
		}
		names[m.Name] = true
		if m.RetokenizeOnDecode && !m.Traits().TakesTokenIDs {
			v.add(key+".retokenize_on_decode", "is true", "false for connector "+m.Connector)
		}
		switch {
		case m.FirstToken != "" && m.FirstToken != FirstTokenDecode && m.FirstToken != FirstTokenPrefill:
			v.add(key+".first_token", fmt.Sprintf("is %q", m.FirstToken), FirstTokenDecode+" or "+FirstTokenPrefill)
		case m.FirstToken == FirstTokenPrefill && !m.Traits().TakesTokenIDs:
			v.add(key+".first_token", "is "+FirstTokenPrefill, FirstTokenDecode+" for connector "+m.Connector)
		case m.FirstToken == FirstTokenPrefill && m.RetokenizeOnDecode:
			v.add(key+".first_token", "is "+FirstTokenPrefill, FirstTokenDecode+" where retokenize_on_decode is true: decode goes on from prefill's token ids")
		}
		if m.MaxConcurrentRequests < 0 {
			v.add(key+".max_concurrent_requests", fmt.Sprintf("is %d", m.MaxConcurrentRequests), "more than 0")
		}
		m.validate(key, c.Growing, engines, endpoints, &v)
	}
	for tenant, p := range c.Priorities {
		if p < -MaxPriority || p > MaxPriority {
			v.add("priorities."+tenant, fmt.Sprintf("is %d", p), "-100 to 100")
		}
	}
	c.Queue.validate(&v)
	c.Migration.validate(&v)
	c.Timeouts.validate(&v)
	c.Media.validate(&v)
	if c.PrefixCacheSecretFile != "" && !c.IsolatePrefixCache {
		v.add("prefix_cache_secret_file", "is set", "isolate_prefix_cache to be true as well")
	}
	c.Limits.validate(&v)
	c.Health.validate(&v)
	return errors.Join(v...)
}

// validate checks one model. growing allows lists without engines; engines has the name of each engine seen, endpoints where they
// publish.
func (m Model) validate(key string, growing bool, engines, endpoints map[string]bool, v *faults) {
	conn, known := connector.Find(m.Connector)
	switch {
	case !known:
		v.add(key+".connector", fmt.Sprintf("is %q", m.Connector), connector.Names())
	case conn.Traits().Mode != dispatch.Alone:
		either := len(m.Engines) != 0 || m.EnginesFrom.On()
		if len(m.Prefill) == 0 && !m.PrefillFrom.On() && !either && !growing {
			v.add(key+".prefill", "is empty", "at least one engine for connector "+m.Connector)
		}
		if len(m.Decode) == 0 && !m.DecodeFrom.On() && !either && !growing {
			v.add(key+".decode", "is empty", "at least one engine for connector "+m.Connector)
		}
		if either && !conn.Traits().EitherRole {
			v.add(key+".engines", "is set", "prefill and decode for connector "+m.Connector)
		}
	default:
		if len(m.Engines) == 0 && !m.EnginesFrom.On() && !growing {
			v.add(key+".engines", "is empty", "at least one engine for connector none")
		}
		if len(m.Prefill)+len(m.Decode) != 0 || m.PrefillFrom.On() || m.DecodeFrom.On() {
			v.add(key+".prefill", "or decode is set", "engines for connector none")
		}
	}
	for _, list := range []struct {
		key     string
		engines []Engine
		from    Source
	}{{"prefill", m.Prefill, m.PrefillFrom}, {"decode", m.Decode, m.DecodeFrom}, {"engines", m.Engines, m.EnginesFrom}} {
		list.from.validate(key+"."+list.key+"_from", m.Connector, v)
		if m.ForwardAuthorization && list.from.BearerTokenFile != "" {
			v.add(key+"."+list.key+"_from.bearer_token_file", "is set", "it or forward_authorization of the model: an engine is sent one Authorization")
		}
		for i, e := range list.engines {
			at := fmt.Sprintf("%s.%s[%d]", key, list.key, i)
			if e.Name == "" {
				v.add(at+".name", "is empty", "a stable name")
			} else if metadata.ValidName(e.Name) != nil {
				v.add(at+".name", fmt.Sprintf("is %.140q", e.Name), "letters, digits, '.', '_' and '-'")
			} else if engines[e.Name] {
				v.add(at+".name", fmt.Sprintf("is %q, the name of another engine", e.Name), "a name of its own")
			} else {
				engines[e.Name] = true
			}
			v.base(at+".url", e.URL)
			v.url(at+".control", e.Control, false)
			if m.ForwardAuthorization && e.BearerTokenFile != "" {
				v.add(at+".bearer_token_file", "is set", "it or forward_authorization of the model: an engine is sent one Authorization")
			}
			e.TLS.validate(at+".tls", strings.HasPrefix(e.URL, "https:") || strings.HasPrefix(e.Control, "https:"), v)
			if e.Control != "" && !m.Publishes() {
				v.add(at+".control", "is set", "no control routes for connector "+m.Connector)
			}
			v.sideChannel(at+".side_channel", e.SideChannel, m.Connector)
			e.validateRanks(at, m.Connector, engines, v)
			e.validateBootstrap(at, m.Connector, list.key == "prefill", v)
			e.validateStock(at, m.Connector, v)
			e.validateKVEvents(at, endpoints, v)
			e.validatePlacement(at, v)
		}
	}
}

// Traits are those of the model's connector.
func (m Model) Traits() *connector.Traits { return connector.Named(m.Connector).Traits() }

// Publishes reports whether the model's engines publish records for the gateway, and have control routes.
func (m Model) Publishes() bool { return m.Traits().Publishes }

// Stock reports whether the model's engines are stock vLLM, which may hold KV that the gateway has to free.
func (m Model) Stock() bool { return m.Traits().Stock != nil }

// faults collects the mistakes of a configuration.
type faults []error

func (v *faults) add(key, is, want string) {
	*v = append(*v, field.Errorf(key, "%s; want %s", is, want))
}

// sideChannel checks the address of a stock engine's side channel.
func (v *faults) sideChannel(key, s, connectorName string) {
	if s == "" {
		return
	}
	if connector.Named(connectorName).Traits().Stock == nil {
		v.add(key, "is set", "no side channel for connector "+connectorName)
		return
	}
	host, port, err := net.SplitHostPort(s)
	if n, perr := strconv.Atoi(port); err != nil || host == "" || perr != nil || n < 1 || n > 65535 {
		v.add(key, fmt.Sprintf("is %q", s), "host:port, such as 10.0.0.7:5600")
	}
}

// base checks that s is the URL of an engine's OpenAI routes.
func (v *faults) base(key, s string) {
	before := len(*v)
	if v.url(key, s, true); len(*v) > before {
		return
	}
	if at := strings.Index(s+"/", "/v1/"); at >= 0 {
		v.add(key, fmt.Sprintf("is %q", s), "it without "+strings.TrimSuffix(s[at:], "/")+": the gateway adds the paths of the routes")
	}
}

// CheckURL says what is wrong with an engine's URL.
func CheckURL(s string) error {
	var v faults
	if v.base("URL", s); len(v) > 0 {
		return v[0]
	}
	return nil
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

// MaxPriority bounds a priority, on either side of 0.
const MaxPriority = 100
