package router

// InFlight returns how many legs an engine works on, all its data-parallel ranks together; 0 for one that is not of the present
// configuration.
func (r *Router) InFlight(engine string) int64 { return r.now().fleet.inFlight(engine) }
