package prefixes

import (
	"hash/maphash"
	"math/bits"
)

// A link of a chain stands for a piece of the prompt. The first 512 bytes are pieces of 64 bytes: about 16 tokens of text, one of vLLM's
// KV blocks, and so the least that an engine caches. Up to 16 KB a piece is 512 bytes, and after that 2 KB: there it matters less
// how much is found to the token. What is behind the last whole piece is not looked for.
const (
	headPiece   = 64
	headPieces  = 8
	finePiece   = 512
	finePieces  = 31
	coarsePiece = 2048
)

// pieceAt returns the size of the piece after the first n.
func pieceAt(n int) int {
	switch {
	case n < headPieces:
		return headPiece
	case n < headPieces+finePieces:
		return finePiece
	}
	return coarsePiece
}

// Bytes is how many bytes of a prompt the first n links of its chain stand for.
func Bytes(n int) int {
	head := min(n, headPieces)
	fine := min(n-head, finePieces)
	return headPiece*head + finePiece*fine + coarsePiece*(n-head-fine)
}

// Key is what must be the same for two prompts to have anything in common: the model, the tenant, whatever stands before the prompt
// itself. The zero value is that of nothing.
type Key uint64

// Key returns the key of all that k stands for, and of s behind that. Keys mean something to this index only.
func (x *Index) Key(k Key, s string) Key { return Key(link(uint64(k), maphash.String(x.seed, s))) }

// KeyBytes is Key of bytes.
func (x *Index) KeyBytes(k Key, b []byte) Key { return Key(link(uint64(k), maphash.Bytes(x.seed, b))) }

// Chain appends a link for each whole piece of a prompt, as many as the index may hold, and returns them: two chains are equal up to the
// piece in which their prompts or keys begin to differ. The key that it returns is what a second part of the prompt goes on from. It is
// safe for concurrent use.
func (x *Index) Chain(dst []uint64, k Key, part []byte) ([]uint64, Key) {
	h := uint64(k)
	for len(dst) < x.bound {
		piece := pieceAt(len(dst))
		if len(part) < piece {
			break
		}
		h = link(h, maphash.Bytes(x.seed, part[:piece]))
		dst, part = append(dst, h), part[piece:]
	}
	return dst, Key(link(h, maphash.Bytes(x.seed, part)))
}

// End returns the key of all that a chain stands for up to byte n of a part of its prompt: key and before, how many links it had then, are of what
// stands before the part. It is not the key of any piece.
func (x *Index) End(chain []uint64, key Key, before int, part []byte, n int) uint64 {
	h, at := uint64(key), 0
	for i := before; i < len(chain) && at+pieceAt(i) <= n; i++ {
		h, at = chain[i], at+pieceAt(i)
	}
	return link(link(h, maphash.Bytes(x.seed, part[at:n])), endMark)
}

// Answered returns the key of an end and the answer to the prompt that ends there, whatever it is.
func Answered(end uint64) uint64 { return link(end, answerMark) }

const (
	endMark    = 0x656e64
	answerMark = 0x616e7377
)

// link is the hash of all that h stands for, and of what next stands for behind that. The seed of maphash is this process's secret, so
// that nobody can look for prompts whose links are equal; of a million links two are with odds of about 3 in 10^8.
func link(h, next uint64) uint64 {
	h = (bits.RotateLeft64(h, 29) ^ next) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}
