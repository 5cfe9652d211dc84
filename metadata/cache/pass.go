package cache

import "time"

// again is when to read what could not be read.
type again struct {
	at       time.Time
	failures int // in a row
}

// pass is one look at the store.
type pass struct {
	all          bool            // everything is read, announced or not
	fresh, again map[string]bool // engines to read: those that could be read last, and those that could not
	off          map[string]bool // those whose pause is not over
	failed       map[string]bool // those that could not be read now; "" is the list of all
	heard        uint64          // the subscription that was there at the beginning; 0 is none
}

// add has more engines read.
func (p pass) add(names []string) {
	for _, name := range names {
		if name != "" && !p.off[name] && !p.again[name] {
			p.fresh[name] = true
		}
	}
}

// begin takes what was noted and whose time has come.
func (c *Cache) begin() pass {
	p := pass{fresh: map[string]bool{}, again: map[string]bool{}, off: map[string]bool{}, failed: map[string]bool{}}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hearing {
		p.heard = c.stats.Watches
	}
	for name := range c.dirty {
		switch before, failed := c.again[name]; {
		case failed && now.Before(before.at):
			p.off[name] = true
			continue
		case name == "":
			p.all = true
		case failed:
			p.again[name] = true
		default:
			p.fresh[name] = true
		}
		delete(c.dirty, name)
	}
	return p
}

// end notes again what could not be read, and says so if the copy is whole after it was not.
func (c *Cache) end(p pass) {
	c.mu.Lock()
	before := 0
	for name := range p.failed {
		before = max(before, c.again[name].failures)
	}
	at := time.Now().Add(c.cfg.pause(before)) // one for all, so that they are read together
	for _, names := range []map[string]bool{p.fresh, p.again} {
		for name := range names {
			if !p.failed[name] {
				delete(c.again, name)
			}
		}
	}
	if p.all && !p.failed[""] {
		delete(c.again, "")
		if p.heard > 0 && c.hearing && p.heard == c.stats.Watches {
			c.missed = false
		}
	}
	for name := range p.failed {
		c.again[name] = again{at, c.again[name].failures + 1}
		c.dirty[name] = true
	}
	if len(p.failed) > 0 {
		c.apart = true
		c.stats.Failures++
	} else if p.all {
		c.readAll = time.Now()
	}
	c.stats.Behind = len(c.again) > 0
	whole := c.apart && c.hearing && !c.missed && len(c.again) == 0
	if whole {
		c.apart = false
	}
	c.mu.Unlock()
	if whole {
		c.changed.tell("")
	}
}

// waiting returns when to read the first of what could not be read again, if there is any.
func (c *Cache) waiting() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var first time.Time
	for _, a := range c.again {
		if first.IsZero() || a.at.Before(first) {
			first = a.at
		}
	}
	return first, !first.IsZero()
}
