package client

import (
	"slices"
	"strings"
	"testing"

	"pdrouter/metadata"
)

// FuzzEventParser: however a stream is cut, the same events come out of it, and nothing makes it keep more than its bounds.
func FuzzEventParser(f *testing.F) {
	for _, s := range []string{
		": open\n\nevent: sync\ndata: {}\n\n", "data: a\r\ndata: b\r\n\r\n", "event: put\rdata:x\r\r", "data\n\n", "id: 1\n\nevent: x\n\n",
		strings.Repeat("x", maxEventLine+1), strings.Repeat("data: "+strings.Repeat("x", 4000)+"\n", 4),
	} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		read := func(size int) (events []string, err error) {
			var p eventParser
			for part := range slices.Chunk(b, size) {
				if err = p.feed(part, func(kind string, data []byte) error {
					if len(data) > maxEventData {
						t.Fatalf("%d bytes of data", len(data))
					}
					_, _ = parseEvent(metadata.WatchKind(kind), data)
					events = append(events, kind+" "+string(data))
					return nil
				}); err != nil {
					return events, err
				}
			}
			return events, nil
		}
		whole, wholeErr := read(len(b) + 1)
		parts, partsErr := read(int(cut) + 1)
		if !slices.Equal(whole, parts) || (wholeErr == nil) != (partsErr == nil) {
			t.Fatalf("cut into %d: got %q, %v; want %q, %v", int(cut)+1, parts, partsErr, whole, wholeErr)
		}
	})
}
