package core

import "slices"

// lazyList keeps values in the order in which they came, so that equal events have equal effects. Those that have left
// are removed now and then, which makes adding free of allocations in the long run.
type lazyList[T any] struct {
	All  []T // the reader asks each whether it is still in
	room int
}

// add appends x; in says whether a value is still in. It must not be called while all is read.
func (l *lazyList[T]) add(x T, in func(T) bool) {
	if len(l.All) >= l.room {
		l.All = slices.DeleteFunc(l.All, func(x T) bool { return !in(x) })
		l.room = 2*len(l.All) + 16
	}
	l.All = append(l.All, x)
}
