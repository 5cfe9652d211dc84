//go:build !linux

package router

import (
	"net"
	"sync"
)

// quiet finds every connection quiet on this system: a closed one is found by using it.
type quiet struct{}

func newQuiet(net.Conn) quiet { return quiet{} }

func (quiet) check() bool { return true }

// patient can read from no connection on this system: who waits for bytes holds a page meanwhile.
type patient struct{}

func newPatient(net.Conn, *sync.Pool) patient { return patient{} }

func (patient) can() bool { return false }

func (patient) read() (*page, int, error) { return nil, 0, net.ErrClosed }

func (patient) ask([]byte) (*page, int, int, error) { return nil, 0, 0, net.ErrClosed }

func (patient) write([]byte) (int, error) { return 0, net.ErrClosed }
