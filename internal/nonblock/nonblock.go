// Package nonblock reads and writes sockets without telling Go's scheduler, and holds no memory for a reader that waits.
//
// Read and Write are system calls on a descriptor that does not block. syscall's own functions tell the scheduler of each call, so
// that other goroutines run if it takes long. After a moment in which nothing ran this also wakes the runtime's monitor thread,
// which costs more than a short call does. They are only for functions that a syscall.RawConn of a
// socket calls: their callers hold up the scheduler meanwhile. Conn and IdleCheck are such callers. The package knows no protocol
// and owns no connection. The gateway's server and its HTTP client use it.
package nonblock
