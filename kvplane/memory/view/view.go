// Package view turns addresses of memory into slices of bytes and back.
package view

import "unsafe"

// Bytes returns the length bytes at an address as a slice. The memory must lie outside Go's heap (mapped, or made by C)
// and stay mapped as long as the slice is used. An empty length gives nil.
func Bytes(address, length uint64) []byte {
	if length == 0 {
		return nil
	}
	at := uintptr(address)
	// Through a pointer to the number: the memory is not Go's, so the collector never moves it.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), length)
}

// Address returns where a slice's bytes lie, 0 if it has none.
func Address(b []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
