package transport_test

import (
	"fmt"
	"testing"

	"pdrouter/kvplane/transfer"
	"pdrouter/kvplane/transport"
	"pdrouter/kvplane/transport/transporttest"
)

// BenchmarkMemoryWrite is writes over NIXL from one agent to another in one process, by what memory they lie in.
func BenchmarkMemoryWrite(b *testing.B) {
	for _, l := range []link{{title: "dram", transport: "nixl"}, {title: "vram", transport: "nixl", memory: "vram"}} {
		for _, shape := range [][2]int{{1, 32 << 20}, {1024, 32 << 10}, {16, 32 << 10}} {
			count, size := shape[0], shape[1]
			b.Run(fmt.Sprintf("%s/%dx%dKiB", l.title, count, size>>10), func(b *testing.B) {
				if err := l.missing(); err != nil {
					b.Skip("SKIPPED, not measured:", err)
				}
				p, d := transporttest.Joined(l.open(b, "p@1", 2*count*size, 1), l.open(b, "d@1", 2*count*size, 0))
				ranges := make([]transfer.Range, count)
				for i := range ranges { // a gap after each, so that none can be merged
					at := uint64(2 * i * size)
					ranges[i] = transfer.Range{Local: p.Base + at, Remote: d.Base + at, Length: uint64(size)}
				}
				write := func() {
					if err := p.Transport.Write("d@1", 1, ranges, []byte("written")); err != nil {
						b.Fatal(err)
					}
					for ended, told := false, false; !ended || !told; {
						p.Poll()
						d.Poll()
						for _, in := range p.Got {
							if in.Err != nil {
								b.Fatal(in.Err)
							}
							ended = ended || in.Kind == transport.WriteEnded
						}
						told = told || len(d.Got) > 0
						p.Got, d.Got = p.Got[:0], d.Got[:0]
					}
				}
				write() // wires up
				b.SetBytes(int64(count * size))
				for b.Loop() {
					write()
				}
			})
		}
	}
}
