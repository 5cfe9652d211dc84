package cache

import "sync"

// subscribers are functions that are told of changes, each by its number. The zero value has none.
type subscribers struct {
	mu   sync.RWMutex
	all  map[int]func(engine string)
	next int
}

// add has f told until cancel is called.
func (s *subscribers) add(f func(engine string)) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.next
	s.next++
	next := make(map[int]func(string), len(s.all)+1) // told ones are called without mu held: the map is replaced whole
	for i, f := range s.all {
		next[i] = f
	}
	next[id] = f
	s.all = next
	return func() { s.remove(id) }
}

func (s *subscribers) remove(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := make(map[int]func(string), len(s.all))
	for i, f := range s.all {
		if i != id {
			next[i] = f
		}
	}
	s.all = next
}

// tell calls every function with each name.
func (s *subscribers) tell(engines ...string) {
	s.mu.RLock()
	all := s.all
	s.mu.RUnlock()
	for _, engine := range engines {
		for _, f := range all {
			f(engine)
		}
	}
}
