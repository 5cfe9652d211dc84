package shared

import (
	"container/list"
	"time"
)

// entry is a value until its lease ends.
type entry struct {
	value []byte
	until time.Time
	at    int64 // nanoseconds since 1970: when it was entered; 0 where nothing says so
}

// leased are entries by key, at most so many: the ones that nobody has asked for longest make room. It does no I/O and is not
// safe for concurrent use.
type leased struct {
	most  int
	byKey map[string]*list.Element // of *held
	used  *list.List               // the last used in front
}

type held struct {
	key string
	entry
}

func newLeased(most int) leased {
	return leased{most: most, byKey: map[string]*list.Element{}, used: list.New()}
}

func (l *leased) put(key string, it entry) {
	if e := l.byKey[key]; e != nil {
		e.Value.(*held).entry = it
		l.used.MoveToFront(e)
		return
	}
	l.byKey[key] = l.used.PushFront(&held{key, it})
	for l.used.Len() > l.most {
		l.drop(l.used.Back())
	}
}

func (l *leased) get(key string, now time.Time) (entry, bool) {
	e := l.byKey[key]
	if e == nil {
		return entry{}, false
	}
	h := e.Value.(*held)
	if !now.Before(h.until) {
		l.drop(e)
		return entry{}, false
	}
	l.used.MoveToFront(e)
	return h.entry, true
}

func (l *leased) drop(e *list.Element) {
	l.used.Remove(e)
	delete(l.byKey, e.Value.(*held).key)
}

func (l *leased) len() int { return l.used.Len() }
