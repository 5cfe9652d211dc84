//go:build !linux

package memory

// hugePages does nothing: such pages are not asked for here.
func hugePages([]byte) {}
