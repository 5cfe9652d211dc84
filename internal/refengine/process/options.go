package process

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"pdrouter/auth"
	"pdrouter/auth/keys"
	"pdrouter/auth/records"
	"pdrouter/internal/configfile"
	"pdrouter/internal/field"
	"pdrouter/internal/refengine"
	"pdrouter/internal/reload"
	"pdrouter/kvplane/transport/byname"
	"pdrouter/metadata"
	"pdrouter/metadata/client"
)

// Options are what an engine process is told. The errors of Validate name the flags of pdrouter mock-engine.
type Options struct {
	Engine refengine.Config // but for what the process makes itself: log, device, plane

	Listen, Control string // addresses of the OpenAI routes, and of the control routes
	Advertise       string // the host that peers and the gateway reach the engine by; "": the addresses listened on
	Gateway         string // URL of the gateway's agents' listener; "": the engine hands nothing over
	TokenFile       string // has the engine's token for the gateway
	SignKey         string // file of the engine's own private key; "": the gateway signs its records
	ControlKeys     []string
	RecordKeys      []string
	Issuer          string // of tokens for the control routes
	KVMemory        string // dram or vram
	Transport       byname.Config
	SerialStarts    bool
	Drain           time.Duration // for requests in flight, and then for their transfers
}

// Validate checks all but the engine's own values, which refengine checks.
func (o Options) Validate() error {
	var errs []error
	if err := metadata.ValidName(o.Engine.Name); err != nil {
		errs = append(errs, fmt.Errorf("engine: --name: %w", err))
	}
	flags := map[string]string{"name": "transport", "path": "plane-path", "listen": "plane-listen"}
	errs = append(errs, field.Rename(o.Transport.Validate(), func(path string) string { return "engine: --" + flags[path] }))
	if o.Transport.Name == "nixl" && o.Transport.Path != "auto" {
		errs = append(errs, errors.New("engine: --plane-path is for tcp; --transport is nixl"))
	}
	switch {
	case o.KVMemory != "dram" && o.KVMemory != "vram":
		errs = append(errs, fmt.Errorf("engine: --kv-memory is %q; want dram or vram", o.KVMemory))
	case o.KVMemory == "vram" && o.Transport.Name == "tcp":
		errs = append(errs, errors.New("engine: --kv-memory vram needs --transport nixl; tcp reaches the host's memory only"))
	}
	if o.Drain < 0 {
		errs = append(errs, fmt.Errorf("engine: --drain is %v; want 0 or more", o.Drain))
	}
	switch {
	case o.Gateway == "" && (o.Engine.Role == metadata.Prefill || o.Engine.Role == metadata.Decode):
		errs = append(errs, fmt.Errorf("engine: --gateway is missing; a %s engine needs it to find its peers", o.Engine.Role))
	case o.Gateway != "" && o.TokenFile == "":
		errs = append(errs, errors.New("engine: --token-file is missing; the gateway asks for a token"))
	case o.Gateway != "":
		if _, err := client.TokenFile(o.TokenFile)(); err != nil {
			errs = append(errs, fmt.Errorf("engine: --token-file: %w", err))
		}
	}
	if o.SignKey != "" && o.Gateway == "" {
		errs = append(errs, errors.New("engine: --sign-key signs what the engine publishes; --gateway is missing"))
	}
	if len(o.ControlKeys) == 0 && configfile.Reachable(o.Control) {
		errs = append(errs, fmt.Errorf("engine: --control is %s without --control-keys; open control routes are for loopback only", o.Control))
	}
	return errors.Join(errs...)
}

// advertised is the host and port that others reach a listener by.
func (o Options) advertised(at net.Addr) string {
	if o.Advertise == "" {
		return at.String()
	}
	_, port, err := net.SplitHostPort(at.String())
	if err != nil {
		return o.Advertise
	}
	return net.JoinHostPort(o.Advertise, port)
}

// authorizer decides who may watch and cancel the engine's transfers. The keys that it trusts are added to files.
func (o Options) authorizer(files *reload.Credentials) (func(*http.Request) error, error) {
	v, err := configfile.TokenAuth{Keys: o.ControlKeys, Issuer: o.Issuer}.Verifier(auth.MetadataAudience, files)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return func(*http.Request) error { return nil }, nil
	}
	agents, err := auth.NewAgents(v)
	if err != nil {
		return nil, err
	}
	return func(r *http.Request) error { return agents.Plane(r, o.Engine.Name) }, nil
}

// records checks what gateways sign, records and tickets; nil if the engine is given no keys for that. The keys are added to files.
func (o Options) records(files *reload.Credentials) (*records.Records, error) {
	if len(o.RecordKeys) == 0 {
		return nil, nil
	}
	trusted, err := keys.LoadTrusted(o.RecordKeys...)
	if err != nil {
		return nil, err
	}
	files.Add(trusted)
	return records.New(nil, trusted)
}

// client speaks to the gateway's metadata routes. Without a checker it believes the gateway what it answers.
func (o Options) client(checker *records.Records) (*client.Client, error) {
	var trust metadata.Voucher
	if checker != nil {
		trust = checker
	}
	c, err := client.New(client.Config{URL: o.Gateway}, client.TokenFile(o.TokenFile), trust, nil)
	if err != nil || o.SignKey == "" {
		return c, err
	}
	key, err := keys.Load(o.SignKey)
	if err != nil {
		return nil, err
	}
	signer, err := records.AgentSigner(key)
	if err != nil {
		return nil, fmt.Errorf("engine: --sign-key: %w", err)
	}
	c.SignWith(signer)
	return c, nil
}
