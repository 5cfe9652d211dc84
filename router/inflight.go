package router

// InFlight returns how many legs an engine works on, all its data-parallel ranks together; 0 for one that is not of the present
// configuration.
func (r *Router) InFlight(engine string) int64 { return r.snapshot().fleet.InFlight(engine) }

// Knows reports whether an engine is of the configuration, or still has requests from when it was.
func (r *Router) Knows(engine string) bool { return r.monitor.Knows(engine) }
