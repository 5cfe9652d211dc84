package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"pdrouter/metadata"
	"pdrouter/router/connector"
)

// Source is where engines come from besides the lists: a DNS name, a file, or pods of Kubernetes. The router only checks this section. Its
// owner watches the source and passes the engines to Apply.
type Source struct {
	// DNS is the base URL of the engines with a name for a host, for example "http://prefill.svc:8000": every address of that
	// name is an engine, called prefill-10-0-0-7-8000. A name that begins with _ is looked up as SRV, which tells the ports:
	// "http://_openai._tcp.prefill.svc".
	DNS string `yaml:"dns"`
	// File is a file with the key engines and a list of the same entries. It is read again when it changes, also if a symbolic link
	// to it changes. A file with a mistake changes nothing.
	File string `yaml:"file"`
	// Kubernetes selects pods; each is an engine.
	Kubernetes Kubernetes `yaml:"kubernetes"`
	// Every is the polling interval, varied at random by up to a tenth. Default 5s for a name, 1s for a file.
	Every time.Duration `yaml:"every"`
	// Names is the prefix of the engines' names; for dns. Default prefill, decode or engine.
	Names string `yaml:"names"`
	// Control is each engine's control, with {host} for its address, for example "http://{host}:9000"; for dns and kubernetes.
	Control string `yaml:"control"`
	// SideChannel is each engine's side_channel, with {host} for its address, for example "{host}:5600"; for dns and kubernetes.
	SideChannel string `yaml:"side_channel"`
	// DataParallel is each engine's data_parallel; for dns and kubernetes.
	DataParallel int `yaml:"data_parallel"`
	// BootstrapPort is each engine's bootstrap_port; for dns and kubernetes, in prefill_from of connector sglang.
	BootstrapPort int `yaml:"bootstrap_port"`
	// TensorParallel is each engine's tensor_parallel; for dns and kubernetes.
	TensorParallel int `yaml:"tensor_parallel"`
	// RequestIDRandomizationDisabled is each engine's request_id_randomization_disabled; for dns and kubernetes.
	RequestIDRandomizationDisabled bool `yaml:"request_id_randomization_disabled"`
	// KVEvents is each engine's kv_events, with {host} for its address, for example {endpoint: "tcp://{host}:5557"}; for dns and kubernetes.
	KVEvents KVEvents `yaml:"kv_events"`
	// Revision is each engine's revision; for dns and kubernetes.
	Revision string `yaml:"revision"`
	// Placement is each engine's; for dns and kubernetes.
	Placement `yaml:",inline"`
	// BearerTokenFile is each engine's bearer_token_file; for dns and kubernetes.
	BearerTokenFile string `yaml:"bearer_token_file"`
	// TLS is each engine's tls; for dns and kubernetes. The engines' URLs have addresses for hosts: server_name is needed unless their
	// certificates have these.
	TLS TLS `yaml:"tls"`
	// KeyDir is a folder whose files the entries of the file, and engines that administrators add to the model, may name as
	// bearer_token_file and in tls. The content of such a file is sent to the engine, so users who may write the file of engines must not be able
	// to write to the folder. Default "": entries may name only the files that the configuration names for the model.
	KeyDir string `yaml:"key_dir"`
	// Allow are the networks that an address must be of, for example "10.0.0.0/8"; others are left out, and counted. For dns.
	// Default: any.
	Allow []string `yaml:"allow"`
	// Server is host:port of the DNS server that is asked. Default: those of the system.
	Server string `yaml:"server"`
	// GoneAfter is for how long valid answers must lack an address before its engine is drained. The engine is removed when its requests
	// have ended. An address that comes and goes often must stay longer each time before it is used again. Default 15s.
	GoneAfter time.Duration `yaml:"gone_after"`
	// MaxStale is for how long the last valid answer is used while DNS fails or returns no address. Then its engines are drained.
	// Default 1h.
	MaxStale time.Duration `yaml:"max_stale"`
}

// On reports whether the source is configured.
func (s Source) On() bool { return s.DNS != "" || s.File != "" || s.Kubernetes.On() }

// isZero reports whether no key of the source is set.
func (s Source) isZero() bool {
	return !s.On() && s.Kubernetes.isZero() && s.Every == 0 && s.KeyDir == "" && s.onlyDNS() == "" && s.notOfFile() == ""
}

// setKey is whether a key is set.
type setKey struct {
	key string
	set bool
}

func firstSet(keys []setKey) string {
	for _, f := range keys {
		if f.set {
			return f.key
		}
	}
	return ""
}

// onlyDNS returns a key that is set and only of use beside dns.
func (s Source) onlyDNS() string {
	return firstSet([]setKey{{"names", s.Names != ""}, {"allow", s.Allow != nil}, {"server", s.Server != ""}, {"gone_after", s.GoneAfter != 0}, {"max_stale", s.MaxStale != 0}})
}

// notOfFile returns a key that is set and of no use beside file, whose entries have it.
func (s Source) notOfFile() string {
	return firstSet([]setKey{
		{"control", s.Control != ""}, {"side_channel", s.SideChannel != ""}, {"bearer_token_file", s.BearerTokenFile != ""}, {"tls", s.TLS != TLS{}},
		{"data_parallel", s.DataParallel != 0}, {"bootstrap_port", s.BootstrapPort != 0},
		{"tensor_parallel", s.TensorParallel != 0}, {"request_id_randomization_disabled", s.RequestIDRandomizationDisabled},
		{"kv_events", s.KVEvents != KVEvents{}}, {"weight", s.Weight != nil}, {"zone", s.Zone != ""}, {"prompt_tokens", s.PromptTokens != TokenRange{}},
		{"revision", s.Revision != ""},
	})
}

// minEvery bounds how often a source is looked at.
const minEvery = 100 * time.Millisecond

// validate checks one source of a model with this connector.
func (s Source) validate(key, connectorName string, v *faults) {
	if s.isZero() {
		return
	}
	switch {
	case s.DNS != "" && s.File != "":
		v.add(key+".file", "is set beside dns", "one of them")
	case !s.Kubernetes.isZero() && (s.DNS != "" || s.File != ""):
		v.add(key+".kubernetes", "is set beside dns or file", "one of them")
	case s.File != "":
		if other := cmp.Or(s.onlyDNS(), s.notOfFile()); other != "" {
			v.add(key+"."+other, "is set beside file", "it in the entries of the file")
		}
	case !s.Kubernetes.isZero():
		s.Kubernetes.validate(key+".kubernetes", connectorName, s.DataParallel, v)
		other := s.onlyDNS()
		if s.Every != 0 {
			other = "every"
		}
		if other != "" {
			v.add(key+"."+other, "is set beside kubernetes", "it beside dns")
		}
		s.validateEngines(key, connectorName, v)
	case s.DNS != "":
		s.validateDNS(key, v)
		s.validateEngines(key, connectorName, v)
	default:
		v.add(key+".dns", "is empty", "dns, file or kubernetes")
		return
	}
	if s.Every < 0 || s.Every > 0 && s.Every < minEvery {
		v.add(key+".every", "is "+s.Every.String(), minEvery.String()+" or more")
	}
	for _, f := range []struct {
		key string
		d   time.Duration
	}{{"gone_after", s.GoneAfter}, {"max_stale", s.MaxStale}} {
		if f.d < 0 {
			v.add(key+"."+f.key, "is "+f.d.String(), "more than 0")
		}
	}
}

func (s Source) validateDNS(key string, v *faults) {
	u, err := url.Parse(s.DNS)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		v.add(key+".dns", fmt.Sprintf("is %q", s.DNS), "a base URL with a name, such as http://prefill.svc:8000")
	case strings.HasPrefix(u.Hostname(), "_") && u.Port() != "":
		v.add(key+".dns", fmt.Sprintf("is %q", s.DNS), "no port: SRV tells it")
	default:
		v.base(key+".dns", s.DNS)
	}
	if s.Names != "" && metadata.ValidName(s.Names) != nil {
		v.add(key+".names", fmt.Sprintf("is %.140q", s.Names), "letters, digits, '.', '_' and '-'")
	}
	if s.Allow != nil && len(s.Allow) == 0 {
		v.add(key+".allow", "is empty", "networks such as 10.0.0.0/8, or no such key")
	}
	for i, cidr := range s.Allow {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			v.add(fmt.Sprintf("%s.allow[%d]", key, i), fmt.Sprintf("is %q", cidr), "a network such as 10.0.0.0/8")
		}
	}
	if s.Server != "" {
		at, err := netip.ParseAddrPort(s.Server)
		if err != nil || at.Port() == 0 {
			v.add(key+".server", fmt.Sprintf("is %q", s.Server), "address:port, such as 10.0.0.2:53")
		}
	}
}

// validateEngines checks what the source says of each of its engines.
func (s Source) validateEngines(key, connectorName string, v *faults) {
	if s.Control != "" {
		switch {
		case !connector.Named(connectorName).Traits().Publishes:
			v.add(key+".control", "is set", "no control routes for connector "+connectorName)
		case !strings.Contains(s.Control, hostMark):
			v.add(key+".control", fmt.Sprintf("is %q", s.Control), "{host} in it, such as http://{host}:9000")
		default:
			v.url(key+".control", strings.ReplaceAll(s.Control, hostMark, "10.0.0.7"), false)
		}
	}
	if s.SideChannel != "" {
		if !strings.Contains(s.SideChannel, hostMark) {
			v.add(key+".side_channel", fmt.Sprintf("is %q", s.SideChannel), "{host} in it, such as {host}:5600")
		} else {
			v.sideChannel(key+".side_channel", strings.ReplaceAll(s.SideChannel, hostMark, "10.0.0.7"), connectorName)
		}
	}
	example := s.Engine("engine", netip.MustParseAddrPort("10.0.0.7:1"))
	example.validateRanks(key, connectorName, map[string]bool{}, v)
	example.validateBootstrap(key, connectorName, strings.HasSuffix(key, "prefill_from"), v)
	example.validateStock(key, connectorName, v)
	for _, f := range []struct{ key, endpoint string }{{"endpoint", s.KVEvents.Endpoint}, {"replay_endpoint", s.KVEvents.ReplayEndpoint}} {
		if f.endpoint != "" && !strings.Contains(f.endpoint, hostMark) {
			v.add(key+".kv_events."+f.key, fmt.Sprintf("is %q", f.endpoint), "{host} in it, such as tcp://{host}:5557")
		}
	}
	example.validateKVEvents(key, map[string]bool{}, v)
	s.validatePlacement(key, v)
	s.TLS.validate(key+".tls", s.scheme() == "https" || strings.HasPrefix(s.Control, "https:"), v)
}

// hostMark stands for an engine's address in the keys of a source.
const hostMark = "{host}"

// Engine returns the entry of the engine that DNS has at an address, for a role called prefill, decode or engine.
func (s Source) Engine(role string, at netip.AddrPort) Engine {
	addr := at.Addr().Unmap()
	host := addr.String()
	name := s.Names
	if name == "" {
		name = role
	}
	e := Engine{Name: name + "-" + strings.NewReplacer(".", "-", ":", "-").Replace(host) + "-" + strconv.Itoa(int(at.Port())), BearerTokenFile: s.BearerTokenFile, TLS: s.TLS,
		DataParallel: s.DataParallel, BootstrapPort: s.BootstrapPort, TensorParallel: s.TensorParallel, RequestIDRandomizationDisabled: s.RequestIDRandomizationDisabled, Revision: s.Revision, Placement: s.Placement}
	if addr.Is6() {
		host = "[" + host + "]"
	}
	u := &url.URL{}
	if base, err := url.Parse(s.DNS); err == nil { // it was validated
		u = base
	}
	u.Scheme, u.Host = s.scheme(), host+":"+strconv.Itoa(int(at.Port()))
	e.URL = u.String()
	e.Control = strings.ReplaceAll(s.Control, hostMark, host)
	e.SideChannel = strings.ReplaceAll(s.SideChannel, hostMark, host)
	e.KVEvents = KVEvents{Endpoint: strings.ReplaceAll(s.KVEvents.Endpoint, hostMark, host), ReplayEndpoint: strings.ReplaceAll(s.KVEvents.ReplayEndpoint, hostMark, host)}
	return e
}
