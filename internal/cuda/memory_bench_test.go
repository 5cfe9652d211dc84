package cuda

import "testing"

// BenchmarkMemoryCopy is the driver's own copies of 32 MiB: what the plane's figures are to be held against.
func BenchmarkMemoryCopy(b *testing.B) {
	const n = 32 << 20
	l, err := Open("")
	if err != nil {
		b.Skip("SKIPPED, not measured:", err)
	}
	d, err := l.Device(0)
	if err != nil {
		b.Skip("SKIPPED, not measured:", err)
	}
	defer d.Close()
	m, err := d.Alloc(2 * n)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	host := make([]byte, n)
	for _, c := range []struct {
		name string
		copy func() error
	}{
		{"in the device", func() error { return m.Copy(n, 0, n) }},
		{"to the device", func() error { return m.Write(0, host) }},
		{"from the device", func() error { return m.Read(0, host) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(n)
			for b.Loop() {
				if err := c.copy(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
