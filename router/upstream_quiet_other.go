//go:build !linux

package router

import "net"

// quiet finds every connection quiet on this system: a closed one is found by using it.
type quiet struct{}

func newQuiet(net.Conn) quiet { return quiet{} }

func (quiet) check() bool { return true }
