package metadata

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Bounds of a record's fields.
const (
	MaxName    = 128      // bytes of an engine name
	MaxText    = 512      // bytes of any other string; Notes may have eight times as many
	MaxBlob    = 64 << 10 // bytes
	MaxRegions = 4096
	MaxGroups  = 64
	MaxRanks   = 1024 // of one engine, and along each axis

	keyBytes = 32 // of an X25519 public key
)

// Lifetime is the record's lease: how long stores keep it.
func (r Record) Lifetime() time.Duration { return r.Expires.Sub(r.Published) }

// ranks returns how many ranks an engine of this size has, or 0 for a size that makes no sense.
func (r Rank) ranks() int {
	for _, n := range [...]int{r.DP, r.PP, r.TP} {
		if n < 1 || n > MaxRanks {
			return 0
		}
	}
	if n := r.DP * r.PP * r.TP; n <= MaxRanks {
		return n
	}
	return 0
}

// ValidName returns nil if the engine name can stand in a route, a log line and a store's key:
// 1 to 128 letters, digits, '.', '_', '-', not starting with '.'.
func ValidName(engine string) error {
	if engine == "" || len(engine) > MaxName || engine[0] == '.' {
		return fmt.Errorf("metadata: engine name %.140q is not 1 to %d letters, digits, '.', '_', '-'", engine, MaxName)
	}
	for _, c := range []byte(engine) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return fmt.Errorf("metadata: engine name %q is not 1 to %d letters, digits, '.', '_', '-'", engine, MaxName)
		}
	}
	return nil
}

// Validate reports every field that is out of bounds. It does not look at the times: an unpublished record has none.
func (r Record) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if r.Version != RecordVersion {
		bad("version is %d; want %d", r.Version, RecordVersion)
	}
	if err := ValidName(r.Engine); err != nil {
		errs = append(errs, err)
	}
	if r.Generation == 0 {
		bad("generation is 0; want the start in Unix nanoseconds")
	}
	switch r.Role {
	case Prefill, Decode, Both:
	default:
		bad("role is %.40q; want prefill, decode or both", string(r.Role))
	}
	if r.Size.ranks() == 0 {
		bad("size is %v; want at least 1 along each axis and at most %d ranks", r.Size, MaxRanks)
	}
	if r.Rank.DP < 0 || r.Rank.PP < 0 || r.Rank.TP < 0 || r.Rank.DP >= r.Size.DP || r.Rank.PP >= r.Size.PP || r.Rank.TP >= r.Size.TP {
		bad("rank is %v; want one of size %v", r.Rank, r.Size)
	}
	for _, f := range []struct{ name, value string }{
		{"connector", r.Connector}, {"connector_version", r.ConnectorVersion}, {"compatibility", r.Compatibility}, {"agent", r.Agent}, {"transport", r.Transport},
		{"doorbell", r.Doorbell}, {"http", r.HTTP}, {"control", r.Control}, {"side", r.Side}, {"engine_id", r.EngineID},
		{"kid", r.KeyID}, {"dtype", r.Layout.DType}, {"memory_type", r.Layout.MemoryType}, {"order", string(r.Layout.Order)},
		{"process.boot", r.Process.Boot}, {"process.namespaces", r.Process.Namespaces},
	} {
		if len(f.value) > MaxText {
			bad("%s has %d bytes; want at most %d", f.name, len(f.value), MaxText)
		}
	}
	if len(r.Key) != 0 && len(r.Key) != keyBytes {
		bad("key is %d bytes; want %d", len(r.Key), keyBytes)
	}
	if r.Process.PID < 0 || r.Process.PID > 1<<30 {
		bad("process.pid is %d; want 0 to %d", r.Process.PID, 1<<30)
	}
	if len(r.Layout.Notes) > 8*MaxText {
		bad("notes have %d bytes; want at most %d", len(r.Layout.Notes), 8*MaxText)
	}
	if len(r.Blob) > MaxBlob {
		bad("blob has %d bytes; want at most %d", len(r.Blob), MaxBlob)
	}
	if len(r.Signature) > MaxText {
		bad("signature has %d bytes; want at most %d", len(r.Signature), MaxText)
	}
	if len(r.Binding) > maxBinding {
		bad("binding has %d bytes; want at most %d", len(r.Binding), maxBinding)
	}
	if err := r.Layout.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Validate reports every value of the layout that is out of bounds. The zero Layout, of an engine that hands nothing
// off, is valid.
func (l Layout) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, f := range []struct {
		name string
		n    int
	}{{"block_tokens", l.BlockTokens}, {"physical_per_logical", l.Physical}, {"heads", l.Heads}, {"head_bytes", l.HeadBytes}} {
		if f.n < 0 || f.n > 1<<24 {
			bad("%s is %d; want 0 to %d", f.name, f.n, 1<<24)
		}
	}
	if l.BlockTokens > 0 && l.Physical > 0 && l.BlockTokens%l.Physical != 0 {
		bad("block_tokens is %d; want a multiple of physical_per_logical, %d", l.BlockTokens, l.Physical)
	}
	switch l.Order {
	case "", HeadsFirst, TokensFirst:
	default:
		bad("order is %.40q; want hnd or nhd", string(l.Order))
	}
	if len(l.Regions) > MaxRegions {
		bad("%d regions; want at most %d", len(l.Regions), MaxRegions)
	}
	if len(l.Groups) > MaxGroups {
		bad("%d groups; want at most %d", len(l.Groups), MaxGroups)
	}
	for i, g := range l.Groups {
		if g.Window < 0 || len(g.Layers) > MaxRegions {
			bad("groups[%d]: window is %d with %d layers; want at least 0 and at most %d layers", i, g.Window, len(g.Layers), MaxRegions)
		}
		if min(g.Heads, g.HeadBytes) < 0 || max(g.Heads, g.HeadBytes) > 1<<24 {
			bad("groups[%d]: %d heads of %d bytes; want 0 to %d of each", i, g.Heads, g.HeadBytes, 1<<24)
		}
	}
	for i, r := range l.Regions {
		if err := r.validate(); err != nil {
			bad("regions[%d]: %w", i, err)
			break // one of thousands says enough
		}
	}
	return errors.Join(errs...)
}

func (r Region) validate() error {
	switch {
	case r.Layer < 0 || r.Layer >= 1<<20:
		return fmt.Errorf("layer is %d; want 0 to %d", r.Layer, 1<<20-1)
	case r.Planes < 1 || r.Planes > 2:
		return fmt.Errorf("planes is %d; want 1 or 2", r.Planes)
	case r.Blocks < 1 || r.Blocks > 1<<31:
		return fmt.Errorf("blocks is %d; want 1 to %d", r.Blocks, 1<<31)
	case r.Length == 0 || r.Base+r.Length < r.Base:
		return fmt.Errorf("base %#x with length %d is no stretch of memory", r.Base, r.Length)
	case r.BlockStride > r.Length || r.PlaneStride > r.Length || r.HeadStride > r.Length || r.TokenStride > r.Length:
		return fmt.Errorf("a stride is longer than the region, %d bytes", r.Length)
	case uint64(r.Blocks-1) > 0 && r.BlockStride > (r.Length-1)/uint64(r.Blocks-1):
		return fmt.Errorf("%d blocks %d apart do not fit into %d bytes", r.Blocks, r.BlockStride, r.Length)
	case r.Device < -1 || r.Device > 1<<16:
		return fmt.Errorf("device is %d", r.Device)
	}
	return nil
}

// Compare orders ranks by dp, pp, tp.
func (r Rank) Compare(o Rank) int {
	return cmp.Or(cmp.Compare(r.DP, o.DP), cmp.Compare(r.PP, o.PP), cmp.Compare(r.TP, o.TP))
}
