//go:build !linux

package kvplane

// hugePages does nothing: such pages are not asked for here.
func hugePages([]byte) {}
