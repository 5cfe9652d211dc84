// Package embed is the plane for an engine that is not written in Go: what internal/refengine does for itself, behind
// calls that take and give plain bytes, wait for nothing and call nobody back. A Rank owns one rank's agent, its record and
// its copy of the peers' records; a Scheduler admits legs, makes orders of what its engine decides, and brings together
// what all ranks report. Bytes travel between the two by the engine's own way. kvplane/capi is its C interface.
//
// Everything is safe for concurrent use.
package embed

import (
	"errors"
	"fmt"

	"pdrouter/kvplane/nixl"
)

// Fault says what kind of mistake an error is; test with errors.As.
type Fault uint8

// The faults.
const (
	Argument Fault = iota + 1 // a value that makes no sense
	State                     // not now
	Room                      // the buffer is too small; nothing was taken
	Refused                   // the configuration
	Full                      // a table is at its bound
	Ticket                    // the leg's ticket is not accepted
	Early                     // as Ticket, until a rank was heard: the engine's generation is not known yet
	Known                     // the transfer id is in use
	System                    // the operating system refuses
)

// faulty is an error with its Fault.
type faulty struct {
	error
	fault Fault
}

func (e faulty) Unwrap() error { return e.error }

func wrong(f Fault, format string, args ...any) error {
	return faulty{fmt.Errorf(format, args...), f}
}

// FaultOf returns an error's fault, 0 if it has none.
func FaultOf(err error) Fault {
	var f faulty
	if errors.As(err, &f) {
		return f.fault
	}
	return 0
}

// Take copies b into buf. *need becomes its length, whether it fits or not.
func Take(b, buf []byte, need *int) error {
	if *need = len(b); len(b) > len(buf) {
		return wrong(Room, "embed: a buffer of %d bytes; want %d", len(buf), len(b))
	}
	copy(buf, b)
	return nil
}

// Variables names what the plane reads of the environment.
func Variables() []string {
	return append(nixl.Variables(), "SSL_CERT_FILE", "SSL_CERT_DIR")
}
