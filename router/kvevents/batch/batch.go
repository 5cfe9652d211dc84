// Package batch reads the batches of KV-cache events that engines publish (vLLM distributed/kv_events.py; SGLang publishes the same):
// MessagePack, in the positional form of older engines and in the map form that they have sent since mid-2026. It is pure: bytes in, events
// out. What a batch means for an index of blocks, and whether batches were lost, is for others (policies/blocks, router/kvevents/stream).
//
// The bytes are not trusted. Nothing is allocated for more elements than a batch can hold, nesting is bounded, and a Decoder keeps its
// memory for the next batch.
package batch

import (
	"errors"
	"fmt"
)

// Kind is what an event says.
type Kind uint8

// The kinds of events. An event of any other type is not reported.
const (
	Stored  Kind = iota + 1 // the engine has blocks
	Removed                 // it has them no more
	Cleared                 // it has no blocks at all
)

// Medium is where blocks are.
type Medium uint8

// The media, from the fastest. An engine that names another one has its blocks on Storage.
const (
	GPU     Medium = iota // also where an event names none
	CPU                   // memory of the host
	Storage               // disks, remote stores
)

// Event is one event. Its slices are the Decoder's and the batch's: they hold until the next call of Decode, and while the batch is not
// changed.
type Event struct {
	Kind Kind

	// Hashes are the engine's names of the blocks. They are handles, for parents and for removal, and say nothing of the content: of a hash
	// of 32 bytes these are the last 8, which is what an engine with integer hashes sends.
	Hashes []uint64
	Medium Medium
	Group  int // the KV cache group of a hybrid model; 0 where the event names none

	// The rest is of Stored alone.

	Parent    uint64 // the hash of the block before the first one
	HasParent bool   // false: the first block begins a prompt, or the event does not say
	// Tokens are those of all blocks, one block after the other. None: the event only says that blocks are on Medium too, or now.
	Tokens    []uint32
	BlockSize int    // in tokens
	LoRA      []byte // the name of the adapter; nil: none
	Salt      []byte // the cache_salt of the prompt that the first block begins; nil: none
	// Extra is what besides tokens, adapter and salt makes each block what it is, as MessagePack: media and prompt embeddings. It is nil if no
	// block has any.
	Extra [][]byte
	// WholePrefix says that the blocks' attention sees the whole prompt, so that they serve any later prompt that begins alike. Blocks of
	// window and state groups do not. Nor is it said of those of an adapter without a name, as engines from before lora_name (vLLM #27577)
	// report them: for which prompts they are is not known.
	WholePrefix bool

	numbered bool // it has a lora_id
}

// Bounds of one batch: the most that an engine step can say, with room.
const (
	maxEvents = 1 << 18
	maxBlocks = 1 << 18 // of one event
	maxTokens = 1 << 22 // of one event
	maxDepth  = 8       // of nested arrays and maps
	maxFields = 64      // of one event
)

// Decoder reads batches. The zero value is ready. It is not safe for concurrent use.
type Decoder struct {
	event  Event
	hashes []uint64
	tokens []uint32
	extra  [][]byte
}

// Decode reads one batch and calls each for every event, in order. An error says where the batch is not what an engine sends; events before
// it have been reported. Fields and types of events that are not known are skipped.
func (d *Decoder) Decode(b []byte, each func(*Event)) error {
	r := reader{b: b}
	if err := d.batch(&r, each); err != nil {
		return fmt.Errorf("batch of events: at byte %d: %w", r.at, err)
	}
	if r.at != len(b) {
		return fmt.Errorf("batch of events: %d bytes after the end", len(b)-r.at)
	}
	return nil
}

// batch reads [timestamp, events, data-parallel rank], or a map with these keys.
func (d *Decoder) batch(r *reader, each func(*Event)) error {
	found := false
	f := r.fields(batchFields[:])
	for f.next(r) {
		if f.name == "events" {
			found = true
			f.err = d.events(r, each)
		} else {
			f.err = r.skip(0)
		}
	}
	if f.err == nil && !found {
		return errors.New("has no events")
	}
	return f.err
}

var batchFields = [...]string{"ts", "events", "data_parallel_rank"}

func (d *Decoder) events(r *reader, each func(*Event)) error {
	n, err := r.array(maxEvents)
	if err != nil {
		return err
	}
	for range n {
		if err := d.one(r); err != nil {
			return err
		}
		if d.event.Kind != 0 {
			each(&d.event)
		}
	}
	return nil
}
