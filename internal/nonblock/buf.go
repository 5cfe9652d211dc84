package nonblock

import (
	"errors"
	"sync"
)

// BufSize is the size of a Buf in bytes.
const BufSize = 8 << 10

// Buf is what one read fills.
type Buf [BufSize]byte

// GetBuf returns a Buf from the pool, or a new one. It is given back with Put.
func GetBuf(bufs *sync.Pool) *Buf {
	if b, ok := bufs.Get().(*Buf); ok {
		return b
	}
	return new(Buf)
}

// ErrNotIdle says that nothing was written to an idle connection: it is closed, or bytes arrived that were not requested.
var ErrNotIdle = errors.New("connection is not idle")
