package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/pflag"

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

// engineOptions are the flags of pdrouter mock-engine.
type engineOptions struct {
	cfg refengine.Config

	listen, control, advertise  string
	gateway, tokenFile, signKey string
	controlKeys, recordKeys     []string
	issuer, kvMemory            string
	transport                   byname.Config
	serialStarts                bool
	drain                       time.Duration
}

// engineFlags adds the flags to f. It returns what reads them once they are parsed. The engine's own values are checked by
// refengine.
func engineFlags(f *pflag.FlagSet) func() (engineOptions, error) {
	var o engineOptions
	c := &o.cfg
	f.StringVar(&c.Name, "name", "engine-0", "stable `name` of the engine")
	f.StringVar(&c.Model, "model", "reference", "`name` of the model in requests")
	role := f.String("role", "both", "prefill, decode or both")
	order := f.String("order", "hnd", "what is outermost in a KV block: hnd (heads) or nhd (tokens)")
	f.Uint64Var(&c.Shape.Seed, "seed", 1, "seed of the model's weights; engines that hand over to each other need the same")
	f.IntVar(&c.Shape.Layers, "layers", 4, "layers of the model")
	f.IntVar(&c.Shape.Heads, "heads", 4, "KV heads of the model")
	f.IntVar(&c.Shape.HeadDim, "head-dim", 4, "8-byte words of one head of one token")
	f.IntVar(&c.PP, "pp", 1, "pipeline stages; where the layers cannot be shared evenly the first stages keep one more")
	f.IntVar(&c.TP, "tp", 1, "tensor-parallel ranks of each stage")
	f.IntVar(&c.BlockTokens, "block-tokens", 16, "tokens of a KV block")
	f.IntVar(&c.Blocks, "blocks", 1024, "KV blocks of each rank")
	f.IntVar(&c.MaxModelLen, "max-model-len", 0, "`tokens` of prompt and answer; default 4096, or what the blocks hold")
	f.BoolVar(&c.PrefixCache, "prefix-cache", true, "find blocks of earlier prompts again")
	prefill := f.Int("prefill-us-per-token", 0, "microseconds that each prompt token costs")
	decode := f.Int("decode-us-per-step", 0, "microseconds that each step of answers costs")
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "`address` of the OpenAI routes")
	f.StringVar(&o.control, "control", "127.0.0.1:0", "`address` of the control routes; other than loopback needs --control-keys")
	f.StringVar(&o.transport.Listen, "plane-listen", "127.0.0.1:0", "`address` of the transport: tcp's connections, nixl's doorbell")
	f.StringVar(&o.transport.Path, "plane-path", "auto", "tcp: how KV goes to a peer: memory (out of this process's, on one host only), socket, or auto (memory where it can be had)")
	f.StringVar(&o.advertise, "advertise", "", "`host` that peers and the gateway reach this engine by; default: the addresses listened on")
	f.StringVar(&o.gateway, "gateway", "", "`URL` of the gateway's agents' listener; without it the engine hands nothing over")
	f.StringVar(&o.tokenFile, "token-file", "", "`file` of the engine's token for the gateway")
	f.StringVar(&o.signKey, "sign-key", "", "`file` of the engine's own private key, which its token is bound to: it signs the engine's records; none: the gateway signs them")
	controlKeys := f.String("control-keys", "", "public keys of tokens for the control routes: `files` or folders, commas between; none: open, on loopback only")
	recordKeys := f.String("record-keys", "", "public keys of the gateways that sign records and tickets: `files` or folders, commas between; none: the gateway is trusted, and legs are taken without a ticket")
	f.StringVar(&o.issuer, "issuer", defaultIssuer, "issuer of these tokens")
	f.StringVar(&o.transport.Name, "transport", "auto", "auto (nixl where it is installed, else tcp), tcp or nixl")
	f.StringVar(&o.kvMemory, "kv-memory", "dram", "where KV lies: dram, or vram: on GPUs, a rank on each, handed over by nixl")
	f.BoolVar(&o.serialStarts, "serial-starts", false, "engines of one name never run side by side: a newer one proves the older one dead")
	f.DurationVar(&o.drain, "drain", 30*time.Second, "how long requests in flight may take after SIGTERM, and then their transfers")
	return func() (engineOptions, error) {
		c.Role, c.Order = metadata.Role(*role), metadata.Order(*order)
		c.PrefillCost, c.DecodeCost = time.Duration(*prefill)*time.Microsecond, time.Duration(*decode)*time.Microsecond
		o.controlKeys, o.recordKeys = splitList(*controlKeys), splitList(*recordKeys)
		o.transport.Advertise = o.advertise
		return o, o.validate()
	}
}

func (o engineOptions) validate() error {
	var errs []error
	if err := metadata.ValidName(o.cfg.Name); err != nil {
		errs = append(errs, fmt.Errorf("engine: --name: %w", err))
	}
	flags := map[string]string{"name": "transport", "path": "plane-path", "listen": "plane-listen"}
	errs = append(errs, field.Rename(o.transport.Validate(), func(path string) string { return "engine: --" + flags[path] }))
	if o.transport.Name == "nixl" && o.transport.Path != "auto" {
		errs = append(errs, errors.New("engine: --plane-path is for tcp; --transport is nixl"))
	}
	switch {
	case o.kvMemory != "dram" && o.kvMemory != "vram":
		errs = append(errs, fmt.Errorf("engine: --kv-memory is %q; want dram or vram", o.kvMemory))
	case o.kvMemory == "vram" && o.transport.Name == "tcp":
		errs = append(errs, errors.New("engine: --kv-memory vram needs --transport nixl; tcp reaches the host's memory only"))
	}
	if o.drain < 0 {
		errs = append(errs, fmt.Errorf("engine: --drain is %v; want 0 or more", o.drain))
	}
	switch {
	case o.gateway == "" && (o.cfg.Role == metadata.Prefill || o.cfg.Role == metadata.Decode):
		errs = append(errs, fmt.Errorf("engine: --gateway is missing; a %s engine needs it to find its peers", o.cfg.Role))
	case o.gateway != "" && o.tokenFile == "":
		errs = append(errs, errors.New("engine: --token-file is missing; the gateway asks for a token"))
	case o.gateway != "":
		if _, err := client.TokenFile(o.tokenFile)(); err != nil {
			errs = append(errs, fmt.Errorf("engine: --token-file: %w", err))
		}
	}
	if o.signKey != "" && o.gateway == "" {
		errs = append(errs, errors.New("engine: --sign-key signs what the engine publishes; --gateway is missing"))
	}
	if len(o.controlKeys) == 0 && configfile.Reachable(o.control) {
		errs = append(errs, fmt.Errorf("engine: --control is %s without --control-keys; open control routes are for loopback only", o.control))
	}
	return errors.Join(errs...)
}

// advertised is the host and port that others reach a listener by.
func (o engineOptions) advertised(at net.Addr) string {
	if o.advertise == "" {
		return at.String()
	}
	_, port, err := net.SplitHostPort(at.String())
	if err != nil {
		return o.advertise
	}
	return net.JoinHostPort(o.advertise, port)
}

// authorizer decides who may watch and cancel the engine's transfers. The keys that it trusts are added to files.
func (o engineOptions) authorizer(files *reload.Credentials) (func(*http.Request) error, error) {
	v, err := configfile.TokenAuth{Keys: o.controlKeys, Issuer: o.issuer}.Verifier(auth.MetadataAudience, files)
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
	return func(r *http.Request) error { return agents.Plane(r, o.cfg.Name) }, nil
}

// records checks what gateways sign, records and tickets; nil if the engine is given no keys for that. The keys are added to files.
func (o engineOptions) records(files *reload.Credentials) (*records.Records, error) {
	if len(o.recordKeys) == 0 {
		return nil, nil
	}
	trusted, err := keys.LoadTrusted(o.recordKeys...)
	if err != nil {
		return nil, err
	}
	files.Add(trusted)
	return records.New(nil, trusted)
}

// client speaks to the gateway's metadata routes. Without a checker it believes the gateway what it answers.
func (o engineOptions) client(checker *records.Records) (*client.Client, error) {
	var trust metadata.Voucher
	if checker != nil {
		trust = checker
	}
	c, err := client.New(client.Config{URL: o.gateway}, client.TokenFile(o.tokenFile), trust, nil)
	if err != nil || o.signKey == "" {
		return c, err
	}
	key, err := keys.Load(o.signKey)
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
