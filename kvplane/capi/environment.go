package main

// #include <stdlib.h>
import "C"

import (
	"os"
	"sync"
	"unsafe"

	"pdrouter/kvplane/embed"
)

// inherit gives Go the environment that it cannot see: its runtime reads it where it lay when the process began, and a process that
// sets its title, as vLLM's workers do, has written over that before it loads the library. Only what this library reads is looked
// for, and only where Go sees nothing.
var inherit = sync.OnceFunc(func() {
	for _, name := range embed.Variables() {
		if _, set := os.LookupEnv(name); set {
			continue
		}
		c := C.CString(name)
		if value := C.getenv(c); value != nil {
			_ = os.Setenv(name, C.GoString(value)) // as it is in C already
		}
		C.free(unsafe.Pointer(c))
	}
})
