package metadata

import (
	"cmp"
	"fmt"
)

// Misfit is a property in which two records differ so that their engines cannot exchange KV blocks.
type Misfit struct {
	Reason PairReason
	What   string // the property
	P, D   any    // its values, of the prefill engine and of the decode engine
}

// Text names the property and both values, for people.
func (m *Misfit) Text() string {
	text := func(value any) string {
		if s, ok := value.(string); ok {
			return plain(s)
		}
		return fmt.Sprint(value)
	}
	return m.What + ": " + text(m.P) + " on prefill, " + text(m.D) + " on decode"
}

// Fits compares what the ranks of an engine have in common, of a prefill and of a decode engine. It returns nil if nothing of that keeps
// them apart. The gateway asks it before it pairs two engines (Pairable), the plane's block plan before it plans between two of their
// ranks, so that both give one answer. It is a pure function.
func Fits(p, d Record) *Misfit {
	x, y := p.Layout, d.Layout
	silent := x.Heads == 0 && y.Heads == 0 // stock engines do not say how their memory is laid out; the digest covers it
	xm, ym := cmp.Or(x.MemoryType, "dram"), cmp.Or(y.MemoryType, "dram")
	for _, row := range []struct {
		fit    bool
		misfit Misfit
	}{
		{p.Connector == d.Connector, Misfit{OtherConnector, "connector", p.Connector, d.Connector}},
		{p.SameProtocol(d), Misfit{OtherProtocol, "connector version", p.ConnectorVersion, d.ConnectorVersion}},
		{p.Transport == d.Transport, Misfit{OtherTransport, "transport", p.Transport, d.Transport}},
		{p.Compatibility == d.Compatibility, Misfit{Incompatible, "compatibility", p.Compatibility, d.Compatibility}},
		{divides(p.Size.TP, d.Size.TP), Misfit{OtherTP, "tensor-parallel size", p.Size.TP, d.Size.TP}},
		{silent || p.Size.DP <= 1 && d.Size.DP <= 1, Misfit{OtherDP, "data-parallel size", p.Size.DP, d.Size.DP}},
		{silent || x.Heads == y.Heads, Misfit{OtherHeads, "heads", x.Heads, y.Heads}},
		{silent || x.Replicated == y.Replicated, Misfit{OtherReplication, "replicated", x.Replicated, y.Replicated}},
		{silent || x.DType == y.DType, Misfit{OtherDType, "dtype", x.DType, y.DType}},
		{silent || x.HeadBytes == y.HeadBytes, Misfit{OtherDType, "head bytes", x.HeadBytes, y.HeadBytes}},
		{silent || xm == ym || p.Transport == "nixl", Misfit{OtherMemory, "memory type", xm, ym}},
	} {
		if !row.fit {
			return &row.misfit
		}
	}
	return nil
}
