package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pdrouter/internal/refengine/process"
	"pdrouter/metadata"
)

func mockEngineCommand() *cobra.Command {
	c := &cobra.Command{Use: "mock-engine", Short: "Run one reference engine: a small model that needs no GPU.", Args: cobra.NoArgs}
	options := engineFlags(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		o, err := options()
		if err != nil {
			return err
		}
		return process.Run(c.Context(), o, c.OutOrStdout())
	}
	return c
}

// engineFlags adds the flags to f. It returns what reads them once they are parsed. The engine's own values are checked by
// refengine.
func engineFlags(f *pflag.FlagSet) func() (process.Options, error) {
	var o process.Options
	c := &o.Engine
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
	f.StringVar(&o.Listen, "listen", "127.0.0.1:0", "`address` of the OpenAI routes")
	f.StringVar(&o.Control, "control", "127.0.0.1:0", "`address` of the control routes; other than loopback needs --control-keys")
	f.StringVar(&o.Transport.Listen, "plane-listen", "127.0.0.1:0", "`address` of the transport: tcp's connections, nixl's doorbell")
	f.StringVar(&o.Transport.Path, "plane-path", "auto", "tcp: how KV goes to a peer: memory (out of this process's, on one host only), socket, or auto (memory where it can be had)")
	f.StringVar(&o.Advertise, "advertise", "", "`host` that peers and the gateway reach this engine by; default: the addresses listened on")
	f.StringVar(&o.Gateway, "gateway", "", "`URL` of the gateway's agents' listener; without it the engine hands nothing over")
	f.StringVar(&o.TokenFile, "token-file", "", "`file` of the engine's token for the gateway")
	f.StringVar(&o.SignKey, "sign-key", "", "`file` of the engine's own private key, which its token is bound to: it signs the engine's records; none: the gateway signs them")
	controlKeys := f.String("control-keys", "", "public keys of tokens for the control routes: `files` or folders, commas between; none: open, on loopback only")
	recordKeys := f.String("record-keys", "", "public keys of the gateways that sign records and tickets: `files` or folders, commas between; none: the gateway is trusted, and legs are taken without a ticket")
	f.StringVar(&o.Issuer, "issuer", defaultIssuer, "issuer of these tokens")
	f.StringVar(&o.Transport.Name, "transport", "auto", "auto (nixl where it is installed, else tcp), tcp or nixl")
	f.StringVar(&o.KVMemory, "kv-memory", "dram", "where KV lies: dram, or vram: on GPUs, a rank on each, handed over by nixl")
	f.BoolVar(&o.SerialStarts, "serial-starts", false, "engines of one name never run side by side: a newer one proves the older one dead")
	f.DurationVar(&o.Drain, "drain", 30*time.Second, "how long requests in flight may take after SIGTERM, and then their transfers")
	return func() (process.Options, error) {
		c.Role, c.Order = metadata.Role(*role), metadata.Order(*order)
		c.PrefillCost, c.DecodeCost = time.Duration(*prefill)*time.Microsecond, time.Duration(*decode)*time.Microsecond
		o.ControlKeys, o.RecordKeys = splitList(*controlKeys), splitList(*recordKeys)
		o.Transport.Advertise = o.Advertise
		return o, o.Validate()
	}
}
