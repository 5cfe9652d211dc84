// Package nonblock reads and writes descriptors that do not block, without a word to Go's scheduler. syscall's own
// functions tell it of each call, for others to run if that takes long; behind a moment in which nothing ran this also wakes
// the runtime's monitor thread, which costs more than a short call does (docs/measurements/profiles.md). It is for the
// functions that a syscall.RawConn of a socket calls, and for nothing that may block: its callers hold up the scheduler meanwhile.
package nonblock
