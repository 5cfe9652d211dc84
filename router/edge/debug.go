package edge

import "net"

// Debug is what only tests of a whole gateway need of the edge.
type Debug struct{ r *Edge }

// Debug returns the edge's debug.
func (srv *Edge) Debug() Debug { return Debug{srv} }

// BodiesOpened is how many bodies were begun to be read, TenantsOfBodies how many tenants have some in memory.
func (d Debug) BodiesOpened() uint64 { return d.r.bodies.opened.Load() }
func (d Debug) TenantsOfBodies() int { return len(d.r.bodies.tenants.held) }

// ServeConn serves one connection as if it were accepted.
func (d Debug) ServeConn(c net.Conn) error {
	app := d.r.newServer(d.r.Current().Config)
	app.Handler() // readies it
	return app.Server().ServeConn(newListener(nil).add(c))
}

// TurnAway has the queues refuse who waits, as a shutdown does.
func (d Debug) TurnAway() { d.r.turnAway() }
