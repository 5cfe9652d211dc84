package vllm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/metadata"
)

// maxRegions bounds the regions that are told of a rank, so that its record stays small enough for a store.
const maxRegions = 1024

// parse makes a record of what an engine says of one rank. What every version says must be there; of what describes
// the memory, the parts that this version knows are taken, and the rest passes.
func parse(b []byte) (metadata.Record, error) {
	rec := metadata.Record{Version: metadata.RecordVersion, Transport: "nixl"}
	payload, err := fields(b)
	if err != nil {
		return metadata.Record{}, fmt.Errorf("answer: %w", err)
	}
	var said []byte
	if err := errors.Join(payload.must("compatibility_hash", &rec.Compatibility), payload.must("agent_metadata_bytes", &said)); err != nil {
		return metadata.Record{}, fmt.Errorf("answer: %w", err)
	}
	agent, err := fields(said)
	if err != nil {
		return metadata.Record{}, fmt.Errorf("answer: agent metadata: %w", err)
	}
	if err := errors.Join(agent.must("engine_id", &rec.EngineID), agent.must("agent_metadata", &rec.Blob)); err != nil {
		return metadata.Record{}, fmt.Errorf("answer: agent metadata: %w", err)
	}
	for _, f := range []struct {
		name      string
		size, max int
	}{{"compatibility_hash", len(rec.Compatibility), metadata.MaxText}, {"engine_id", len(rec.EngineID), metadata.MaxText}, {"agent_metadata", len(rec.Blob), metadata.MaxBlob}} {
		if f.size == 0 || f.size > f.max {
			return metadata.Record{}, fmt.Errorf("answer: %s has %d bytes; want 1 to %d", f.name, f.size, f.max)
		}
	}
	rec.Layout = agent.layout()
	return rec, nil
}

// values are the fields of a map, not yet decoded.
type values map[string]msgpack.RawMessage

// fields reads a map within the bounds of a record.
func fields(b []byte) (values, error) {
	if err := metadata.CheckMsgpack(b); err != nil {
		return nil, err
	}
	var v values
	if err := msgpack.Unmarshal(b, &v); err != nil {
		return nil, err
	}
	return v, nil
}

// must decodes a field that has to be there.
func (v values) must(name string, to any) error {
	raw, ok := v[name]
	if !ok {
		return fmt.Errorf("has no %s", name)
	}
	if err := msgpack.Unmarshal(raw, to); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// get decodes a field, and reports whether it is there and of that type.
func (v values) get(name string, to any) bool { return v.must(name, to) == nil }

// layout is what an engine says of a rank's memory, as far as a record can say it. The order of heads and tokens, the
// element type and the planes are covered by the compatibility hash, and the regions are numbered as the engine lists
// them.
func (v values) layout() metadata.Layout {
	var l metadata.Layout
	var order string
	if v.get("kv_cache_layout", &order) {
		l.Order = nesting(order)
	}
	v.get("block_size", &l.BlockTokens)
	v.get("physical_blocks_per_logical_kv_block", &l.Physical)
	l.BlockTokens *= max(1, l.Physical) // vLLM's block_size is that of its kernel's blocks
	var kinds []string
	if v.get("region_mem_types", &kinds) && len(kinds) > 0 {
		l.MemoryType = strings.ToLower(kinds[0])
	}
	l.Regions = v.regions()
	if l.Validate() != nil || len(l.MemoryType) > metadata.MaxText { // numbers of another kind than this version knows
		return metadata.Layout{}
	}
	return l
}

// nesting reads an order of dimensions, such as HND or LBHNC: H are heads, N tokens.
func nesting(dimensions string) metadata.Order {
	switch heads, tokens := strings.IndexByte(dimensions, 'H'), strings.IndexByte(dimensions, 'N'); {
	case heads < 0 || tokens < 0:
		return ""
	case heads < tokens:
		return metadata.HeadsFirst
	}
	return metadata.TokensFirst
}

func (v values) regions() []metadata.Region {
	var bases, lens, strides []uint64
	var blocks, device int
	if !v.get("kv_caches_base_addr", &bases) || !v.get("block_lens", &lens) || !v.get("num_blocks", &blocks) ||
		len(bases) != len(lens) || len(bases) > maxRegions || blocks < 1 {
		return nil
	}
	if !v.get("block_strides", &strides) || len(strides) != len(bases) {
		strides = lens // older engines: blocks lie side by side
	}
	v.get("device_id", &device)
	each := []int(nil)
	if v.get("region_num_blocks", &each) && len(each) != len(bases) {
		each = nil
	}
	regions := make([]metadata.Region, len(bases))
	for i, base := range bases {
		n := blocks
		if each != nil {
			n = each[i]
		}
		if n < 1 || strides[i] > 1<<40 || lens[i] > 1<<40 { // more than any memory has: the length would wrap
			return nil
		}
		regions[i] = metadata.Region{
			Layer: i, Planes: 1, Base: base, Length: uint64(n-1)*strides[i] + lens[i], Blocks: n,
			BlockStride: strides[i], Device: device,
		}
	}
	return regions
}
