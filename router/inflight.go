package router

// InFlight returns how many legs an engine works on, all its data-parallel ranks together; 0 for one that is not of the present
// configuration.
func (r *Router) InFlight(engine string) int64 {
	f := r.now().fleet
	if e := f.engine(engine); e != nil {
		return e.inFlight.Load()
	}
	n := int64(0)
	for _, e := range f.ranks[engine] {
		n += e.inFlight.Load()
	}
	return n
}
