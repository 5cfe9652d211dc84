package router

import (
	"runtime"
	"sync"
	"weak"
)

// perEngine is what one part of the gateway keeps for each engine. It is safe for concurrent use. What it keeps ends with its engine,
// which it must not refer to.
type perEngine[T any] struct {
	byEngine *sync.Map // weak.Pointer[engine] → *T; the cleanup of an engine must reach nothing but this
}

func newPerEngine[T any]() perEngine[T] { return perEngine[T]{new(sync.Map)} }

// of returns what is kept for an engine; at first a zero value.
func (p perEngine[T]) of(e *engine) *T {
	key, all := weak.Make(e), p.byEngine
	if v, ok := all.Load(key); ok {
		return v.(*T)
	}
	v, known := all.LoadOrStore(key, new(T))
	if !known {
		runtime.AddCleanup(e, func(key weak.Pointer[engine]) { all.Delete(key) }, key)
	}
	return v.(*T)
}
