package metadata

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Pair names one run of a prefill engine and one run of a decode engine.
type Pair struct {
	Prefill, Decode Incarnation
}

// String returns both engine ids.
func (p Pair) String() string { return p.Prefill.ID() + "→" + p.Decode.ID() }

// Unpairable says why two engines cannot exchange KV blocks.
type Unpairable struct {
	Reason PairReason
	Text   string // names both values
}

// Error returns the reason and both values.
func (u *Unpairable) Error() string { return "not pairable: " + u.Reason.String() + ": " + u.Text }

// PairReason is why two engines are not pairable, for metrics. The zero value is none.
type PairReason uint8

// Why engines are not pairable.
const (
	IncompleteRanks  PairReason = iota + 1 // a rank's record is missing
	MixedRecords                           // one engine's records contradict each other
	WrongRole                              // not a prefill and a decode engine
	NoConnector                            // an engine hands nothing off
	OtherConnector                         // push with pull, stock with plane
	OtherTransport                         // tcp with nixl
	Incompatible                           // digests differ
	OtherTP                                // neither divides the other
	OtherHeads                             // heads differ, or cannot be split over the ranks
	OtherBlock                             // kernel blocks: the larger is no multiple of the smaller
	OtherDType                             // element type, head width or planes differ
	OtherOrder                             // nesting inside a block differs
	OtherLayers                            // a layer is missing on one side
	SideChannelDead                        // a stock engine no longer answers those who want to know it
	OtherReplication                       // one side keeps all heads on every rank, the other does not
	OtherProtocol                          // the connector's protocol has another version
	OtherDP                                // data-parallel ranks whose memory is laid out by the plane
	OtherMemory                            // one in host memory and one on a GPU, without NIXL
	OtherRevision                          // weights or engine version differ, as the configuration says
	pairReasons
)

// String returns the reason's word in metrics, "" for none.
func (r PairReason) String() string {
	if r >= pairReasons {
		return "unknown"
	}
	return [pairReasons]string{"", "incomplete_ranks", "mixed_records", "role", "no_connector", "connector", "transport",
		"compatibility", "tp_ratio", "heads", "block_tokens", "dtype", "order", "layers", "side_channel_dead", "replicated_layout", "protocol", "dp_size", "memory", "revision"}[r]
}

func unpairable(reason PairReason, format string, args ...any) error {
	return &Unpairable{Reason: reason, Text: fmt.Sprintf(format, args...)}
}

// plain returns a value of a record as texts for people name it: without quotes, which JSON would escape, unless it has
// characters that do not print.
func plain(s string) string {
	if s == "" {
		return "none"
	}
	if q := strconv.Quote(s); q != `"`+s+`"` {
		return q
	}
	return s
}

// Pairable returns nil if the prefill engine that published p and the decode engine that published d can exchange KV
// blocks, else an *Unpairable. It is a pure function.
func Pairable(p, d []Record) error {
	a, err := Complete(p)
	if err != nil {
		return err
	}
	b, err := Complete(d)
	if err != nil {
		return err
	}
	switch {
	case a.Role == Decode:
		return unpairable(WrongRole, "%s is a %s engine; want prefill or both", a.Engine, a.Role)
	case b.Role == Prefill:
		return unpairable(WrongRole, "%s is a %s engine; want decode or both", b.Engine, b.Role)
	case a.Connector == "" || b.Connector == "":
		return unpairable(NoConnector, "connectors are %s and %s", plain(a.Connector), plain(b.Connector))
	}
	if m := Fits(a, b); m != nil {
		return &Unpairable{Reason: m.Reason, Text: m.Text()}
	}
	if a.Layout.Heads == 0 && b.Layout.Heads == 0 {
		return nil // stock engines
	}
	if err := layoutsFit(a, b); err != nil {
		return err
	}
	for _, recs := range [][]Record{p, d} {
		if err := stagesEven(recs); err != nil {
			return err
		}
	}
	la, lb := layers(p), layers(d)
	if !slices.Equal(la, lb) {
		return unpairable(OtherLayers, "%s has layers %s, %s has %s", a.Engine, runs(la), b.Engine, runs(lb))
	}
	return nil
}

// layoutsFit compares how blocks are laid out, which ranks have in common and Fits leaves out.
func layoutsFit(a, b Record) error {
	x, y := a.Layout, b.Layout
	switch {
	case x.Heads < 1:
		return unpairable(OtherHeads, "KV heads are %d", x.Heads)
	case !divides(x.Heads, a.Size.TP):
		return unpairable(OtherHeads, "%d KV heads on %d tensor-parallel ranks of %s; want one to divide the other", x.Heads, a.Size.TP, a.Engine)
	case !divides(y.Heads, b.Size.TP):
		return unpairable(OtherHeads, "%d KV heads on %d tensor-parallel ranks of %s; want one to divide the other", y.Heads, b.Size.TP, b.Engine)
	case planes(x) != planes(y):
		return unpairable(OtherDType, "planes per layer are %d and %d", planes(x), planes(y))
	}
	kx, ky := kernel(x), kernel(y)
	if !divides(kx, ky) {
		return unpairable(OtherBlock, "kernel blocks have %d and %d tokens; want one to be a multiple of the other", kx, ky)
	}
	// With one head per rank or one token per block both orders are the same bytes.
	hx, hy := localHeads(x, a.Size.TP), localHeads(y, b.Size.TP)
	same := max(hx, hy) == 1 || max(kx, ky) == 1
	switch {
	case x.Order != y.Order && !same:
		return unpairable(OtherOrder, "orders are %s and %s", x.Order, y.Order)
	case x.Order == TokensFirst && hx != hy && !same:
		return unpairable(OtherOrder, "tokens first with %d and %d heads per rank would be moved one head of one token at a time", hx, hy)
	}
	return nil
}

// Complete returns the first of an engine's records if they are one record of each rank, of one incarnation, that
// agree in all that an engine's ranks share. Else it returns an *Unpairable.
func Complete(recs []Record) (Record, error) {
	if len(recs) == 0 {
		return Record{}, unpairable(IncompleteRanks, "0 ranks are published")
	}
	first := recs[0]
	seen := make(map[Rank]bool, len(recs))
	for _, r := range recs {
		switch {
		case r.Incarnation != first.Incarnation:
			return Record{}, unpairable(MixedRecords, "records of %s and of %s", first.ID(), r.ID())
		case r.Size != first.Size:
			return Record{}, unpairable(MixedRecords, "%s: size is %v on rank %v and %v on rank %v", first.Engine, first.Size, first.Rank, r.Size, r.Rank)
		case r.Role != first.Role || r.Connector != first.Connector || r.Transport != first.Transport:
			return Record{}, unpairable(MixedRecords, "%s: rank %v is %s, %s, %s and rank %v is %s, %s, %s", first.Engine,
				first.Rank, first.Role, plain(first.Connector), plain(first.Transport), r.Rank, r.Role, plain(r.Connector), plain(r.Transport))
		case r.ConnectorVersion != first.ConnectorVersion:
			return Record{}, unpairable(MixedRecords, "%s: connector version is %s on rank %v and %s on rank %v", first.Engine,
				plain(first.ConnectorVersion), first.Rank, plain(r.ConnectorVersion), r.Rank)
		case r.Compatibility != first.Compatibility:
			return Record{}, unpairable(MixedRecords, "%s: digest is %s on rank %v and %s on rank %v", first.Engine,
				plain(first.Compatibility), first.Rank, plain(r.Compatibility), r.Rank)
		case !SameLayout(r.Layout, first.Layout):
			return Record{}, unpairable(MixedRecords, "%s: ranks %v and %v have different layouts", first.Engine, first.Rank, r.Rank)
		case seen[r.Rank]:
			return Record{}, unpairable(MixedRecords, "%s: rank %v is there twice", first.Engine, r.Rank)
		}
		seen[r.Rank] = true
	}
	if want := first.Size.ranks(); len(seen) != want {
		return Record{}, unpairable(IncompleteRanks, "%s: %d of %d ranks are published", first.Engine, len(seen), want)
	}
	return first, nil
}

// SameLayout compares what the ranks of one engine share; regions, groups and notes are each rank's own.
func SameLayout(x, y Layout) bool {
	return x.BlockTokens == y.BlockTokens && x.Physical == y.Physical && x.Heads == y.Heads && x.HeadBytes == y.HeadBytes &&
		x.Order == y.Order && x.DType == y.DType && x.Replicated == y.Replicated && (len(x.Regions) == 0) == (len(y.Regions) == 0)
}

// divides reports whether one of two positive numbers divides the other.
func divides(a, b int) bool { return a > 0 && b > 0 && (a%b == 0 || b%a == 0) }

// TokenBytes is how many bytes the KV of one token takes on all ranks of an engine, given their records; 0 if these do not say.
func TokenBytes(ranks []Record) (bytes float64) {
	for i := range ranks {
		l := &ranks[i].Layout
		for _, r := range l.Regions {
			if tokens := r.Blocks * kernel(*l); tokens > 0 {
				bytes += float64(r.Length) / float64(tokens)
			}
		}
	}
	return bytes
}

// kernel returns the tokens of a kernel block.
func kernel(l Layout) int { return l.BlockTokens / max(l.Physical, 1) }

func localHeads(l Layout, tp int) int {
	if l.Replicated {
		return l.Heads
	}
	return max(1, l.Heads/tp)
}

// planes returns the planes of one layer, over all its regions.
func planes(l Layout) int {
	n := 0
	for _, r := range l.Regions {
		if r.Layer == l.Regions[0].Layer {
			n += r.Planes
		}
	}
	return n
}

// layers returns the layers that an engine's records name, sorted.
func layers(recs []Record) []int {
	set := map[int]struct{}{}
	for _, rec := range recs {
		for _, r := range rec.Layout.Regions {
			set[r.Layer] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// stagesEven refuses an engine in which a rank lacks a layer that another rank of the same pipeline stage holds: of that
// layer a part of the heads is nowhere.
func stagesEven(recs []Record) error {
	stages := map[Rank]Record{}
	for _, r := range recs {
		stage := Rank{DP: r.Rank.DP, PP: r.Rank.PP}
		first, ok := stages[stage]
		if !ok {
			stages[stage] = r
			continue
		}
		if x, y := layers([]Record{first}), layers([]Record{r}); !slices.Equal(x, y) {
			return unpairable(MixedRecords, "%s: rank %v has layers %s and rank %v has %s", r.Engine, first.Rank, runs(x), r.Rank, runs(y))
		}
	}
	return nil
}

// runs writes sorted numbers as "0-3,7".
func runs(n []int) string {
	if len(n) == 0 {
		return "none"
	}
	s := ""
	for i := 0; i < len(n); {
		j := i
		for j+1 < len(n) && n[j+1] == n[j]+1 {
			j++
		}
		if s != "" {
			s += ","
		}
		s += fmt.Sprint(n[i])
		if j > i {
			s += fmt.Sprintf("-%d", n[j])
		}
		i = j + 1
	}
	return s
}
