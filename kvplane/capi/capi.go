// Command capi is libpdkv.so, the plane as a C library (pdkv.h; go build -buildmode=c-shared, make lib). It holds nothing
// but what a C interface needs: handles, copies between C's memory and Go's, and errors as numbers and text. pdkv.c stands
// in front of it and lets nothing in from a forked process.
package main

// #include "pdkv.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime/debug"
	"unsafe"

	"pdrouter/kvplane/embed"
)

func main() {} // a library is not run

// code is the C interface's number of a fault.
func code(f embed.Fault) C.int32_t {
	switch f {
	case embed.Argument:
		return C.PDKV_EARGUMENT
	case embed.State:
		return C.PDKV_ESTATE
	case embed.Room:
		return C.PDKV_EROOM
	case embed.Refused:
		return C.PDKV_ECONFIG
	case embed.Full:
		return C.PDKV_EFULL
	case embed.Ticket:
		return C.PDKV_ETICKET
	case embed.Early:
		return C.PDKV_EARLY
	case embed.Known:
		return C.PDKV_EKNOWN
	case embed.System:
		return C.PDKV_ESYSTEM
	}
	return C.PDKV_EINTERNAL
}

// maxText is the room that pdkv.c has for the text of an error, with its final 0.
const maxText = 4096

// explain writes an error's text, in UTF-8 whatever it quotes.
func explain(text *C.char, why string) {
	b := unsafe.Slice((*byte)(unsafe.Pointer(text)), maxText)
	b[copy(b, embed.Cut(why, maxText-1))] = 0
}

// serve runs one call: its error becomes a number and a text, and so does a panic.
func serve(text *C.char, call func() (int, error)) (result C.int32_t) {
	defer func() {
		if p := recover(); p != nil {
			explain(text, fmt.Sprintf("internal fault: %v\n%s", p, debug.Stack()))
			result = C.PDKV_EINTERNAL
		}
	}()
	n, err := call()
	if err == nil {
		return C.int32_t(n)
	}
	explain(text, err.Error())
	if errors.Is(err, errHandle) {
		return C.PDKV_EHANDLE
	}
	return code(embed.FaultOf(err))
}

// with runs a call on an open handle of kind T.
func with[T any](h C.pdkv_handle, text *C.char, call func(T) (int, error)) C.int32_t {
	return serve(text, func() (int, error) {
		x, done, err := opened.use(int64(h))
		if err != nil {
			return 0, err
		}
		defer done()
		one, ok := x.(T)
		if !ok {
			return 0, errHandle
		}
		return call(one)
	})
}

// only is a call that gives nothing but an error.
func only(err error) (int, error) { return 0, err }

// lent is a caller's memory as a slice, for the time of a call.
func lent[T any](p *T, n C.size_t) []T {
	if p == nil || n == 0 {
		return nil
	}
	return unsafe.Slice(p, n)
}

// filled runs a call that writes into a caller's buffer and says how much that is, or would be.
func filled(buf unsafe.Pointer, capacity C.size_t, length *C.size_t, call func(buf []byte, n *int) error) (int, error) {
	n := 0
	err := call(lent((*byte)(buf), capacity), &n)
	*length = C.size_t(n)
	return 0, err
}
