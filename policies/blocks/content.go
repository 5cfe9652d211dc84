package blocks

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// A block's content is a hash of its tokens and of the content of the block before it; that of a prompt's first block goes on from a root,
// which stands for the model, the adapter, the salt and the block size. Each of these is hashed whole and takes its own step, so that a salt
// and an adapter of the same name are two things. The seeds are this process's secret: no client can look for prompts whose hashes are equal.
// Of a million blocks two are with odds of about 3 in 10^8.

// root is the content that prompts of this kind go on from.
func (x *Index) root(size int, model, lora, salt string) uint64 {
	h := x.link(uint64(size), maphash.String(x.seed, model))
	h = x.link(h, maphash.String(x.seed, lora))
	return x.link(h, maphash.String(x.seed, salt))
}

// link is the content of what next stands for after what h stands for.
func (x *Index) link(h, next uint64) uint64 { return mix(h^x.secret[0], next^x.secret[1]) }

// next is the content of a block of these tokens after a block with that content. What is before it comes in last, so that a processor works on the tokens
// of several blocks at a time.
func (x *Index) next(content uint64, tokens []uint32) uint64 {
	a, b := x.secret[2], uint64(len(tokens))
	for ; len(tokens) >= 16; tokens = tokens[16:] { // nearly all blocks have 16 tokens, or a multiple: two of what follows at a time
		t := (*[16]uint32)(tokens)
		a = mix(a^(uint64(t[0])|uint64(t[1])<<32), x.secret[3]^(uint64(t[2])|uint64(t[3])<<32))
		b = mix(b^(uint64(t[4])|uint64(t[5])<<32), x.secret[1]^(uint64(t[6])|uint64(t[7])<<32))
		a = mix(a^(uint64(t[8])|uint64(t[9])<<32), x.secret[3]^(uint64(t[10])|uint64(t[11])<<32))
		b = mix(b^(uint64(t[12])|uint64(t[13])<<32), x.secret[1]^(uint64(t[14])|uint64(t[15])<<32))
	}
	if len(tokens) >= 8 {
		t := (*[8]uint32)(tokens)
		a = mix(a^(uint64(t[0])|uint64(t[1])<<32), x.secret[3]^(uint64(t[2])|uint64(t[3])<<32))
		b = mix(b^(uint64(t[4])|uint64(t[5])<<32), x.secret[1]^(uint64(t[6])|uint64(t[7])<<32))
		tokens = tokens[8:]
	}
	for _, t := range tokens {
		a = mix(a^uint64(t), x.secret[3])
	}
	return mix(content^a^x.secret[1], b^x.secret[0])
}

// extra is the hash of what besides tokens makes a block what it is.
func (x *Index) extra(h uint64, b []byte) uint64 { return x.link(h, maphash.Bytes(x.seed, b)) }

// handle is the key by which a holder names a block.
func (x *Index) handle(engineHash uint64, t Tier, group int) uint64 {
	var b [17]byte
	binary.LittleEndian.PutUint64(b[:], engineHash)
	binary.LittleEndian.PutUint64(b[8:], uint64(group))
	b[16] = byte(t)
	return maphash.Bytes(x.seed, b[:])
}

// mix is the step of wyhash: the product of two numbers, its halves added without carry.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
