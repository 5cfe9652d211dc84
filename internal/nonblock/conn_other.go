//go:build !linux

package nonblock

import (
	"net"
	"sync"
)

// IdleCheck finds every connection idle on this system: a closed one is found by using it.
type IdleCheck struct{}

// NewIdleCheck returns the IdleCheck of a connection.
func NewIdleCheck(net.Conn) IdleCheck { return IdleCheck{} }

// Idle returns true.
func (IdleCheck) Idle() bool { return true }

// Conn is not available on this system: a reader holds a Buf while it waits for bytes.
type Conn struct{}

// NewConn returns the Conn of a connection.
func NewConn(net.Conn, *sync.Pool) Conn { return Conn{} }

// Available returns false.
func (Conn) Available() bool { return false }

// Read returns net.ErrClosed.
func (Conn) Read() (*Buf, int, error) { return nil, 0, net.ErrClosed }

// WriteRead returns net.ErrClosed.
func (Conn) WriteRead([]byte) (*Buf, int, int, error) { return nil, 0, 0, net.ErrClosed }

// Write returns net.ErrClosed.
func (Conn) Write([]byte) (int, error) { return 0, net.ErrClosed }
