package nixltransport

import (
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/kvplane/memory"
)

// FuzzNIXLBlob reads what a peer has published: memory that was taken is in order, does not overlap or wrap around,
// and is of a type that NIXL knows, and every part of it can be described.
func FuzzNIXLBlob(f *testing.F) {
	for _, regions := range [][]memory.Region{
		nil,
		{{Base: 0x1000, Length: 0x1000}},
		{{Base: 0x4000, Length: 0x1000, Type: "vram", Device: 3}, {Base: 0x1000, Length: 0x1000, Type: "dram"}},
		{{Base: 0x1000, Length: 0x1000}, {Base: 0x1fff, Length: 1}},
		{{Base: ^uint64(0) - 1, Length: 2}},
		{{Base: 1, Length: 1, Type: "disk"}},
	} {
		b, err := msgpack.Marshal(contact{Version: blobVersion, Metadata: []byte("nixl's own"), Memory: regions})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint64(0x1000), uint64(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, address, length uint64) {
		blob, s, err := parseContact(b)
		if err != nil {
			return
		}
		if len(s) != len(blob.Memory) {
			t.Fatalf("%d stretches of %d", len(s), len(blob.Memory))
		}
		for i, m := range s {
			if m.Base == 0 || m.Length == 0 || m.Base+m.Length < m.Base || i > 0 && s[i-1].Base+s[i-1].Length > m.Base {
				t.Fatalf("taken: %+v", s)
			}
			side := sideOf{whose: "the peer's", spans: s}
			if r, err := side.region(m.Base+m.Length-1, 1); err != nil || r.Length != 1 {
				t.Fatalf("the last byte of %+v: %v", m, err)
			}
			if _, err := side.region(m.Base+m.Length, ^uint64(0)); err == nil {
				t.Fatalf("a range behind %+v was taken", m)
			}
		}
		if _, err := memoryOf(s); err != nil {
			t.Fatal(err)
		}
		side := sideOf{whose: "the peer's", spans: s}
		if r, err := side.region(address, length); err == nil && !s.Holds(r.Address, r.Length) {
			t.Fatalf("%+v is outside of %+v", r, s)
		}
	})
}

// TestNIXLBlobClaims has a blob of a few bytes claim two thousand million stretches of memory: it gets no room for them.
func TestNIXLBlobClaims(t *testing.T) {
	b := []byte("\x83\xa1v\x01\xa2md\xc4\x00\xa6memory\xdd\x7f\xff\xff\xff")
	allocated := testing.AllocsPerRun(1, func() {
		if _, _, err := parseContact(b); err == nil || !strings.Contains(err.Error(), "stretches of memory") {
			t.Errorf("taken, or refused for another reason: %v", err)
		}
	})
	if allocated > 50 {
		t.Errorf("%v allocations", allocated)
	}
}
