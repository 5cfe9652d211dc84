package refengine

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"pdrouter/metadata"
)

// Config describes one engine.
type Config struct {
	Name       string        // stable name, chosen by the operator; default "engine"
	Generation uint64        // Unix nanoseconds of the start; default now. A name's generations grow.
	Model      string        // what requests call the model; default "reference"
	Role       metadata.Role // which legs it serves; default both
	Shape      Shape

	PP          int            // pipeline stages; default 1, at most the layers. The first ones keep a layer more where needed
	TP          int            // tensor-parallel ranks of each stage; default 1; divides the number of heads, or is a multiple of it
	BlockTokens int            // tokens of a block; default 16
	Blocks      int            // blocks of every rank; default 1024
	Order       metadata.Order // how heads and tokens are nested in a block; default heads first
	PrefixCache bool           // whether finished blocks are found again by their contents
	Device      Device         // makes the ranks' KV memory on GPUs; nil: it lies in the host's

	Adapters     []string // names of LoRA adapters of the model, which requests may name in place of it; default none
	AdapterSlots int      // how many of them stock vLLM would compute with at a time; default 1

	MaxModelLen int // tokens of prompt and answer; default 4096, at most what the blocks hold
	ChatTokens  int // of a chat answer whose request sets no limit; default 256
	MaxRunning  int // sequences computed at once; default 64
	MaxStep     int // prompt tokens computed in one step, over all sequences; default 2048

	PrefillCost time.Duration // added to a step for each prompt token; default 0
	DecodeCost  time.Duration // added to a step that computes an answer's token; default 0

	Plane Plane
	Pull  *Pull         // how KV is handed over in stock vLLM's way; nil: it is not
	Lease time.Duration // for how long a finished prompt is kept for another engine, in that way; default 30 s
	// Bidirectional has the engine keep the blocks of an answer that it has read the prompt of, for the prefill engine of the next turn, and read
	// such blocks: vLLM's bidirectional_kv_xfer.
	Bidirectional bool
	PinsClaimed   int           // how many tokens an answer says that it pins; 0: as many as it does
	PinFor        time.Duration // for how long it keeps them; default 480 s
	PlainNames    bool          // other engines know its requests by the ids that it was sent, without a suffix of its own
	Faults        []Fault       // what goes wrong on purpose
	Timed         func(Times)   // told of each first token, by the engine's goroutine; nil: nobody is
	Log           *slog.Logger
}

// withDefaults fills what was left zero.
func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, "engine")
	c.Generation = cmp.Or(c.Generation, uint64(time.Now().UnixNano()))
	c.Model = cmp.Or(c.Model, "reference")
	c.Role = cmp.Or(c.Role, metadata.Both)
	c.Shape.Seed = cmp.Or(c.Shape.Seed, 1)
	c.Shape.Layers = cmp.Or(c.Shape.Layers, 4)
	c.Shape.Heads = cmp.Or(c.Shape.Heads, 4)
	c.Shape.HeadDim = cmp.Or(c.Shape.HeadDim, 4)
	c.PP = cmp.Or(c.PP, 1)
	c.TP = cmp.Or(c.TP, 1)
	c.BlockTokens = cmp.Or(c.BlockTokens, 16)
	c.Blocks = cmp.Or(c.Blocks, 1024)
	c.Order = cmp.Or(c.Order, metadata.HeadsFirst)
	c.MaxModelLen = cmp.Or(c.MaxModelLen, min(4096, c.Blocks*c.BlockTokens))
	c.ChatTokens = cmp.Or(c.ChatTokens, 256)
	c.MaxRunning = cmp.Or(c.MaxRunning, 64)
	c.MaxStep = cmp.Or(c.MaxStep, 2048)
	c.AdapterSlots = cmp.Or(c.AdapterSlots, 1)
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.PinFor = cmp.Or(c.PinFor, 480*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate reports every mistake at once, each by the name of its field.
func (c Config) Validate() error {
	var errs []error
	wrong := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	atLeastOne := func(name string, n int) { wrong(n >= 1, "%s is %d; want at least 1", name, n) }
	atLeastOne("layers", c.Shape.Layers)
	atLeastOne("heads", c.Shape.Heads)
	atLeastOne("head_dim", c.Shape.HeadDim)
	atLeastOne("pp", c.PP)
	atLeastOne("tp", c.TP)
	atLeastOne("block_tokens", c.BlockTokens)
	atLeastOne("blocks", c.Blocks)
	atLeastOne("chat_tokens", c.ChatTokens)
	atLeastOne("max_running", c.MaxRunning)
	atLeastOne("max_step", c.MaxStep)
	atLeastOne("adapter_slots", c.AdapterSlots)
	if heads := c.Shape.Heads; heads >= 1 && c.TP >= 1 {
		wrong(heads%c.TP == 0 || c.TP%heads == 0, "tp is %d; want a divisor or a multiple of the %d heads", c.TP, heads)
	}
	wrong(c.PP <= max(c.Shape.Layers, 1), "pp is %d; want at most the %d layers", c.PP, c.Shape.Layers)
	room := c.Blocks * c.BlockTokens
	wrong(c.MaxModelLen >= 2 && c.MaxModelLen <= room, "max_model_len is %d; want 2 to %d, what the blocks hold", c.MaxModelLen, room)
	wrong(c.Role == metadata.Prefill || c.Role == metadata.Decode || c.Role == metadata.Both,
		"role is %q; want prefill, decode or both", c.Role)
	wrong(c.Order == metadata.HeadsFirst || c.Order == metadata.TokensFirst, "order is %q; want hnd or nhd", c.Order)
	wrong(c.PrefillCost >= 0 && c.DecodeCost >= 0, "costs are %v and %v; want none below 0", c.PrefillCost, c.DecodeCost)
	for i, f := range c.Faults {
		if err := f.validate(); err != nil {
			errs = append(errs, fmt.Errorf("faults[%d]: %w", i, err))
		}
	}
	return errors.Join(errs...)
}
