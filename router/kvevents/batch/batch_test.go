package batch

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/internal/golden"
)

// recorded are batches as engines encode them: the map forms by vLLM 0.32's own classes, the positional forms in the field order of older
// releases.
func recorded(t testing.TB) map[string][]byte { return golden.Recorded(t, "testdata/*.msgpack") }

// write is an event as the golden file shows it.
func write(w *strings.Builder, e *Event) {
	fmt.Fprintf(w, "  %s %x medium %d group %d", [...]string{"", "stored", "removed", "cleared"}[e.Kind], e.Hashes, e.Medium, e.Group)
	if e.Kind == Stored {
		fmt.Fprintf(w, " parent %v %x tokens %d by %d lora %q salt %q whole %v", e.HasParent, e.Parent, e.Tokens, e.BlockSize, e.LoRA, e.Salt, e.WholePrefix)
		for i, extra := range e.Extra {
			fmt.Fprintf(w, " extra[%d] %x", i, extra)
		}
	}
	w.WriteByte('\n')
}

// TestRecorded reads every form that engines send.
func TestRecorded(t *testing.T) {
	var d Decoder
	var got strings.Builder
	paths, _ := filepath.Glob("testdata/*.msgpack")
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".msgpack")
		got.WriteString(name + "\n")
		if err := d.Decode(recorded(t)[name], func(e *Event) { write(&got, e) }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	golden.Equal(t, "testdata/events.txt", got.String())
}

// TestBothHashForms: the bytes of a hash and the integer that the same engine would send for it are one handle.
func TestBothHashForms(t *testing.T) {
	var d Decoder
	var got []uint64
	for _, hash := range []any{bytes.Repeat([]byte{0xab}, 32), uint64(0xabababababababab)} {
		err := d.Decode(encode(t, map[string]any{"type": "BlockRemoved", "block_hashes": []any{hash}}), func(e *Event) { got = append(got, e.Hashes...) })
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 2 || got[0] != got[1] {
		t.Errorf("got %x; want one handle twice", got)
	}
}

// TestAdapterWithoutName: engines from before lora_name tell an adapter by its number alone. What its blocks are is not known: they are not those
// of the model.
func TestAdapterWithoutName(t *testing.T) {
	stored := []any{"BlockStored", []any{1}, nil, []int{5, 6}, 2}
	for _, tt := range []struct {
		name string
		more []any // lora_id, medium, lora_name
		want bool
	}{
		{"no adapter, from before media", []any{nil}, true},
		{"an adapter, from before media", []any{1}, false},
		{"an adapter, from before names", []any{1, "GPU"}, false},
		{"an adapter", []any{1, "GPU", "sql"}, true},
		{"no adapter", []any{nil, "GPU", nil}, true},
	} {
		var d Decoder
		n := 0
		err := d.Decode(encode(t, append(stored[:len(stored):len(stored)], tt.more...)), func(e *Event) {
			n++
			if e.WholePrefix != tt.want {
				t.Errorf("%s: whole prefix %v; want %v", tt.name, e.WholePrefix, tt.want)
			}
		})
		if err != nil || n != 1 {
			t.Errorf("%s: %d events, %v", tt.name, n, err)
		}
	}
}

// encode returns a batch of these events.
func encode(t testing.TB, events ...any) []byte {
	t.Helper()
	b, err := msgpack.Marshal([]any{1.5, events, 0})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestBroken: what no engine sends is refused, in little memory, and what came before it is reported.
func TestBroken(t *testing.T) {
	array32 := []byte{0xdd, 0xff, 0xff, 0xff, 0xff}
	stored := func(field string, v any) []byte {
		return encode(t, map[string]any{"type": "AllBlocksCleared"}, map[string]any{"type": "BlockStored", field: v})
	}
	for _, tt := range []struct {
		name     string
		b        []byte
		reported int
		want     string
	}{
		{"nothing", nil, 0, "no array"},
		{"no events", []byte{0x91, 0x01}, 0, "has no events"},
		{"more events than bytes", append([]byte{0x92, 0x01}, array32...), 0, "ends too early"},
		{"more tokens than bytes", append(append([]byte{0x92, 0x01, 0x91, 0x94}, "\xabBlockStored\x90\xc0"...), array32...), 0, "token_ids: ends too early"},
		{"something after the end", append(encode(t, map[string]any{"type": "AllBlocksCleared"}), 0xc0), 1, "1 bytes after the end"},
		{"a text for hashes", stored("block_hashes", "abc"), 1, "block_hashes: code 0xa3 is no array"},
		{"a short hash", stored("block_hashes", [][]byte{{1}}), 1, "hash of 1 bytes"},
		{"a token below 0", stored("token_ids", []int{1, -1}), 1, "token -1"},
		{"a large token", stored("token_ids", []uint64{1 << 32}), 1, "token 4294967296"},
		{"a large block", stored("block_size", 1<<30), 1, "block_size"},
		{"a nested field", stored("newer", bytesNested(1000)), 1, "nested deeper"},
		{"nested arrays", bytes.Repeat([]byte{0x91}, 1<<20), 0, "nested deeper"},
	} {
		var d Decoder
		n := 0
		err := d.Decode(tt.b, func(*Event) { n++ })
		if err == nil || !strings.Contains(err.Error(), tt.want) || n != tt.reported {
			t.Errorf("%s: %v, %d events reported; want an error with %q and %d", tt.name, err, n, tt.want, tt.reported)
		}
		if cap(d.hashes)+cap(d.tokens) > 1<<16 {
			t.Errorf("%s: room for %d hashes and %d tokens", tt.name, cap(d.hashes), cap(d.tokens))
		}
	}
}

// bytesNested is an array in an array, and so on.
func bytesNested(depth int) msgpack.RawMessage {
	return append(bytes.Repeat([]byte{0x91}, depth), 0xc0)
}

// FuzzDecode: whatever comes, it is refused or gives events within the bounds.
func FuzzDecode(f *testing.F) {
	for _, b := range recorded(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var d Decoder
		_ = d.Decode(b, func(e *Event) {
			if e.Kind < Stored || e.Kind > Cleared || len(e.Hashes) > len(b) || len(e.Tokens) > len(b) || len(e.Extra) > len(b) || e.BlockSize < 0 || e.Group < 0 || e.Medium > Storage {
				t.Errorf("%+v of %d bytes", e, len(b))
			}
		})
	})
}

// stepOf is a batch of an engine's step: n events of one block of 16 tokens each, in the form of vLLM 0.32.
func stepOf(t testing.TB, n int) []byte {
	events := make([]any, n)
	for i := range events {
		tokens := make([]uint32, 16)
		for k := range tokens {
			tokens[k] = uint32(i*7919+k*104729) % 150_000
		}
		events[i] = map[string]any{"type": "BlockStored", "block_hashes": [][]byte{bytes.Repeat([]byte{byte(i)}, 32)}, "parent_block_hash": bytes.Repeat([]byte{7}, 32),
			"token_ids": tokens, "block_size": 16, "lora_id": nil, "medium": "GPU", "lora_name": nil, "extra_keys": []any{nil}, "group_idx": 0, "kv_cache_spec_kind": "full_attention"}
	}
	return encode(t, events...)
}

// TestDecodeAllocations: a Decoder that has seen a batch reads the next in the same memory.
func TestDecodeAllocations(t *testing.T) {
	var d Decoder
	b := stepOf(t, 100)
	if got := testing.AllocsPerRun(20, func() { _ = d.Decode(b, func(*Event) {}) }); got > 0 {
		t.Errorf("%v allocations a batch; want 0", got)
	}
}

func BenchmarkDecode(b *testing.B) {
	var d Decoder
	batch, n := stepOf(b, 100), 0
	b.SetBytes(int64(len(batch)))
	for b.Loop() {
		if err := d.Decode(batch, func(*Event) { n++ }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}
