//go:build !linux

package router

import "net"

type goneWatcher struct{}

func newGoneWatcher() *goneWatcher { return &goneWatcher{} }

// Watch reports false: connections are not watched on this system.
func (g *goneWatcher) Watch(net.Conn, func()) (goneWatch, bool) { return goneWatch{}, false }

// Close does nothing.
func (g *goneWatcher) Close() {}

type goneWatch struct{}

// Stop does nothing.
func (w goneWatch) Stop() {}
