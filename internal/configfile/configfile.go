// Package configfile is the file of pdrouter serve: its types and their comments, from which docs/configuration.md and schema.json are made,
// defaults, checks, what differs between two of them, and what of it may change while the gateway runs. It opens only the files that it
// checks. The gateway that a file describes is built by internal/gateway.
package configfile

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"

	"pdrouter/internal/field"
	"pdrouter/internal/yamlfile"
	"pdrouter/policies"
	"pdrouter/router/config"
)

// File is the file of pdrouter serve. It is read once and never changed. Relative paths in it are relative to the
// folder that it stands in.
type File struct {
	Listen        Listen           `yaml:"listen"`
	config.Config `yaml:",inline"` // models, timeouts, limits, strict
	Policy        Policy           `yaml:"policy"`
	Metadata      Metadata         `yaml:"metadata"`
	Auth          Auth             `yaml:"auth"`
	Tenants       Tenants          `yaml:"tenants"`
	Log           Log              `yaml:"log"`
	Tracing       Tracing          `yaml:"tracing"`
	// Reclaim says whether the gateway tells stock engines over NIXL which KV blocks may be freed: auto (default), if NIXL is
	// found and a model's connector is vllm-nixl-push or vllm-nixl-pull, or off.
	Reclaim string `yaml:"reclaim"`
	// Replicas is how many gateways serve this configuration behind one address. It only says what they need of each other:
	// check warns where they cannot have it. Default 1.
	Replicas int `yaml:"replicas"`
	// Advanced has settings whose defaults fit.
	Advanced Advanced `yaml:"advanced"`
}

// Listen says where the three listeners are, each as host:port.
type Listen struct {
	Clients    string `yaml:"clients"`    // the OpenAI routes; default 127.0.0.1:8080
	Agents     string `yaml:"agents"`     // metadata of the engines' ranks; default "": none
	Operations string `yaml:"operations"` // /health, /ready, /metrics, /requests and /explain; default 127.0.0.1:9090
	// ClientsTLS has clients connect by TLS 1.2 or newer; default: without TLS, which is for a loopback address or a proxy in front that has it.
	ClientsTLS TLS `yaml:"clients_tls"`
	// AgentsTLS is required where agents is not a loopback address: tokens and KV coordinates travel there.
	AgentsTLS TLS `yaml:"agents_tls"`
	// Admin is where engines are added, drained and removed while the gateway runs; default "": none. It needs auth.admins:
	// looking wants the scope read, the rest the scope engines.
	Admin string `yaml:"admin"`
	// AdminTLS is required where admin is not a loopback address.
	AdminTLS TLS `yaml:"admin_tls"`
}

// TLS names a server certificate, both as PEM files.
type TLS struct {
	CertFile string `yaml:"cert_file"` // the certificate chain, PEM
	KeyFile  string `yaml:"key_file"`  // its private key, PEM
}

// on reports whether a certificate is named.
func (t TLS) on() bool { return t.CertFile != "" || t.KeyFile != "" }

// Policy is a policy in place, or the file that has it.
type Policy struct {
	File            string `yaml:"file"` // a file that has the rest of this section; default: it stands here
	policies.Config `yaml:",inline"`
	// Shadow is a second policy. It is asked for each request, without effect; /requests and pdrouter_shadow_decisions_total say where it would
	// have chosen otherwise. Default: there is none.
	Shadow policies.Config `yaml:"shadow"`
}

// Log says what is logged, to standard error.
type Log struct {
	Level  string `yaml:"level"`  // debug, info (default), warn or error
	Format string `yaml:"format"` // json (default) or text
}

// Loaded is a configuration that was found sound.
type Loaded struct {
	File
	Path    string            // "": it stands in no file
	Sum     [sha256.Size]byte // of the file
	Digest  string            // the same, for people
	Routing *policies.Policy
	Shadow  *policies.Policy // nil: there is none
}

// Load reads, completes and validates the file at path. It reports every mistake at once, joined, each with
// file and line. The files that it names are not opened, but for a policy.
func Load(path string) (*Loaded, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return Parse(path, b)
}

// Parse completes and validates a configuration. path is "" of one that stands in no file.
func Parse(path string, b []byte) (*Loaded, error) {
	var c File
	f := yamlfile.Decode(path, b, &c)
	for _, key := range []string{"timeouts", "limits", "health", "queue", "migration.max_idle", "migration.memory", "migration.min_tokens",
		"migration.per_engine", "migration.pinned_share", "migration.timeout", "migration.tokens_per_second"} {
		f.CheckZeros(key)
	}
	c = c.withDefaults()
	f.Check(c.Validate())
	c.Resolve(filepath.Dir(path))
	l := &Loaded{File: c, Path: path, Sum: sha256.Sum256(b)}
	l.Digest = hex.EncodeToString(l.Sum[:6])
	var policyErr error
	if c.Policy.File != "" {
		if l.Routing, policyErr = policies.Load(c.Policy.File); policyErr != nil && errors.Is(policyErr, os.ErrNotExist) {
			f.Check(field.Errorf("policy.file", "is %q; want a file that exists", c.Policy.File))
			policyErr = nil
		}
	} else if c.Policy.Validate() == nil { // its mistakes are among those of c
		l.Routing, policyErr = policies.New(c.Policy.Config)
	}
	if s := c.Policy.Shadow; !reflect.ValueOf(s).IsZero() && s.Validate() == nil {
		l.Shadow, _ = policies.New(s)
	}
	if err := errors.Join(f.Err(), policyErr); err != nil {
		return nil, err
	}
	return l, nil
}

func (c File) withDefaults() File {
	if c.Listen.Clients == "" {
		c.Listen.Clients = "127.0.0.1:8080"
	}
	if c.Listen.Operations == "" {
		c.Listen.Operations = "127.0.0.1:9090"
	}
	if c.Log.Level == "" {
		c.Log.Level = "info"
	}
	if c.Log.Format == "" {
		c.Log.Format = "json"
	}
	c.Metadata = c.Metadata.withDefaults()
	c.Growing = c.Listen.Admin != ""
	return c
}

// Validate reports every mistake, joined; each message begins with the dotted key it is about.
func (c File) Validate() error {
	errs := []error{
		c.Config.Validate(),
		c.validateReclaim(),
		c.Listen.validate(),
		c.validateAgents(),
		c.validateAdmin(),
		c.Policy.validate(),
		c.Metadata.validate(),
		c.Auth.validate(),
		c.Tenants.Validate(),
		c.Auth.validateDevelopment(c.Listen),
		c.Log.validate(),
		c.Tracing.validate(),
		c.validateReplicas(),
		c.Advanced.validate(),
	}
	return errors.Join(errs...)
}

// validateAgents checks what the agents' listener needs of other sections.
func (c File) validateAgents() error {
	var errs []error
	if c.Listen.Agents == "" {
		for i, m := range c.Models {
			if m.Publishes() {
				errs = append(errs, field.Errorf(fmt.Sprintf("models[%d].connector", i), "is kvplane, whose engines publish their records to the gateway; want listen.agents to be set"))
			}
		}
		return errors.Join(errs...)
	}
	if len(c.Auth.Records.Trusted) > 0 && c.Auth.Records.KeyFile == "" {
		errs = append(errs, field.Errorf("auth.records.key_file", "is missing; want this gateway's private key, because it takes in records (listen.agents) and auth.records.trusted wants them signed"))
	}
	if !c.Auth.Agents.On() {
		errs = append(errs, field.Errorf("auth.agents.keys", "is missing; want the public keys of the agents' tokens, because listen.agents is set"))
	}
	return errors.Join(errs...)
}

func (l Listen) validate() error {
	var errs []error
	type listener struct{ key, address string }
	type place struct{ key, host, port string }
	var seen []place
	for _, at := range []listener{{"clients", l.Clients}, {"agents", l.Agents}, {"operations", l.Operations}, {"admin", l.Admin}} {
		if at.address == "" {
			continue
		}
		host, port, err := net.SplitHostPort(at.address)
		n, numErr := strconv.Atoi(port)
		switch {
		case err != nil || numErr != nil || n < 0 || n > 65535:
			errs = append(errs, field.Errorf("listen."+at.key, "is %q; want host:port, such as 127.0.0.1:8080", at.address))
			continue
		}
		for _, other := range seen {
			if n != 0 && other.port == port && (other.host == host || wildcard(other.host) || wildcard(host)) {
				errs = append(errs, field.Errorf("listen."+at.key, "is %q, which listen.%s takes; want an address of its own", at.address, other.key))
				break
			}
		}
		seen = append(seen, place{at.key, host, port})
		if at.key == "agents" && !loopback(host) && !l.AgentsTLS.on() {
			errs = append(errs, field.Errorf("listen.agents", "is %q, which others can reach, without TLS; want listen.agents_tls with cert_file and key_file, or a loopback address", at.address))
		}
	}
	for _, s := range l.Secured() {
		if !s.files.on() {
			continue
		}
		if s.files.CertFile == "" {
			errs = append(errs, field.Errorf("listen."+s.Key+"_tls.cert_file", "is missing; want a PEM file"))
		}
		if s.files.KeyFile == "" {
			errs = append(errs, field.Errorf("listen."+s.Key+"_tls.key_file", "is missing; want a PEM file"))
		}
		if s.address == "" {
			errs = append(errs, field.Errorf("listen."+s.Key+"_tls", "is set without listen.%s; want both or neither", s.Key))
		}
	}
	return errors.Join(errs...)
}

// secured is a listener that may have TLS.
type secured struct {
	Key, address string
	files        *TLS
	least        uint16 // the oldest version of TLS
}

// Secured returns the listeners that may have TLS. Agents and administrators come with clients of ours; others may be older.
func (l *Listen) Secured() []secured {
	return []secured{
		{"clients", l.Clients, &l.ClientsTLS, tls.VersionTLS12},
		{"agents", l.Agents, &l.AgentsTLS, tls.VersionTLS13},
		{"admin", l.Admin, &l.AdminTLS, tls.VersionTLS13},
	}
}

// Load returns the TLS configuration of the listener, nil without TLS.
func (s secured) Load() (*tls.Config, error) {
	if !s.files.on() {
		return nil, nil
	}
	certificate, err := tls.LoadX509KeyPair(s.files.CertFile, s.files.KeyFile)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: s.least}, nil
}

// note says for people that a listener has TLS.
func (t TLS) note() string {
	if t.on() {
		return " (TLS)"
	}
	return ""
}

// Scheme is how the listener's URLs begin.
func (t TLS) Scheme() string {
	if t.on() {
		return "https://"
	}
	return "http://"
}

// wildcard reports whether a listener on host takes the port on every address.
func wildcard(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// loopback reports whether only this machine reaches a listener on host.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Reachable reports whether other machines reach a listener on address.
func Reachable(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && !loopback(host)
}

func (p Policy) validate() error {
	if p.File != "" && (len(p.Rules) > 0 || !reflect.ValueOf(p.Default).IsZero()) {
		return field.Errorf("policy.file", "is set beside rules; want one of them")
	}
	return errors.Join(field.Under("policy", p.Validate()), field.Under("policy.shadow", p.Shadow.Validate()))
}

func (l Log) validate() error {
	var errs []error
	if _, err := l.MinLevel(); err != nil {
		errs = append(errs, field.Errorf("log.level", "is %q; want debug, info, warn or error", l.Level))
	}
	if l.Format != "json" && l.Format != "text" {
		errs = append(errs, field.Errorf("log.format", "is %q; want json or text", l.Format))
	}
	return errors.Join(errs...)
}

// MinLevel is the least level that is logged.
func (l Log) MinLevel() (slog.Level, error) {
	switch l.Level {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, field.Errorf("no", "such level")
}
