package router

// Busy reports whether requests need an engine or one of its data-parallel ranks: it works on them, or has KV that has not come to decode. It is
// false for one that is not of the present configuration.
func (r *Router) Busy(engine string) bool { return r.snapshot().fleet.Busy(engine) }

// Knows reports whether an engine is of the configuration, or requests still need it from when it was.
func (r *Router) Knows(engine string) bool { return r.monitor.Knows(engine) }

// MovesLeft returns how many conversations an engine that drains has yet to give away, all its data-parallel ranks together; see
// config.Migration.
func (r *Router) MovesLeft(engine string) (n int) {
	for _, e := range r.snapshot().fleet.Engines {
		if e.Name == engine || e.RankOf == engine {
			n += r.moves.Remaining(e)
		}
	}
	return n
}
