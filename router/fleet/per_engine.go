package fleet

import (
	"runtime"
	"sync"
	"weak"
)

// PerEngine is what one part of the gateway keeps for each engine. It is safe for concurrent use. What it keeps ends with its engine,
// which it must not refer to.
type PerEngine[T any] struct {
	byEngine *sync.Map // weak.Pointer[engine] → *T; the cleanup of an engine must reach nothing but this
}

func NewPerEngine[T any]() PerEngine[T] { return PerEngine[T]{new(sync.Map)} }

// Of returns what is kept for an engine; at first a zero value.
func (p PerEngine[T]) Of(e *Engine) *T {
	key, all := weak.Make(e), p.byEngine
	if v, ok := all.Load(key); ok {
		return v.(*T)
	}
	v, known := all.LoadOrStore(key, new(T))
	if !known {
		runtime.AddCleanup(e, func(key weak.Pointer[Engine]) { all.Delete(key) }, key)
	}
	return v.(*T)
}
