// Package nixl is NIXL's C ABI in Go: agents, backends, registered memory, transfers and notifications. The library
// is opened at run time, without cgo; a machine that lacks it gets an error from Open and nothing else changes.
// Unsafe code is here and in package cuda beside it, nowhere else.
package nixl
