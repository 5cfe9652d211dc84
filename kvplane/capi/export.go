package main

// #include "pdkv.h"
import "C"

import (
	"time"
	"unsafe"

	"pdrouter/kvplane"
	"pdrouter/kvplane/embed"
	"pdrouter/metadata"
)

// Pointers and lengths were checked by pdkv.c.

//export pdkvGoOpen
func pdkvGoOpen(config *C.char, n C.size_t, out *C.pdkv_handle, text *C.char) C.int32_t {
	return serve(text, func() (int, error) {
		inherit()
		if opened.full() {
			explain(text, "too many open handles")
			return int(C.PDKV_EFULL), nil
		}
		h, err := open(C.GoBytes(unsafe.Pointer(config), C.int(n)))
		if err != nil {
			return 0, err
		}
		id, err := opened.add(h)
		*out = C.pdkv_handle(id)
		return 0, err
	})
}

//export pdkvGoClose
func pdkvGoClose(h C.pdkv_handle, text *C.char) C.int32_t {
	return serve(text, func() (int, error) { return only(opened.close(int64(h))) })
}

//export pdkvGoFD
func pdkvGoFD(h C.pdkv_handle, text *C.char) C.int32_t {
	return with(h, text, func(x handle) (int, error) { return x.FD(), nil })
}

//export pdkvGoRegister
func pdkvGoRegister(h C.pdkv_handle, regions *C.pdkv_region, n C.size_t, text *C.char) C.int32_t {
	return with(h, text, func(x *embed.Rank) (int, error) {
		list := make([]metadata.Region, 0, n)
		for _, r := range lent(regions, n) {
			list = append(list, metadata.Region{
				Layer: int(r.layer), Planes: int(r.planes), Base: uint64(r.base), Length: uint64(r.length), Blocks: int(min(r.blocks, 1<<32)),
				BlockStride: uint64(r.block_stride), PlaneStride: uint64(r.plane_stride), HeadStride: uint64(r.head_stride),
				TokenStride: uint64(r.token_stride), Device: int(r.device),
			})
		}
		return only(x.Register(list))
	})
}

//export pdkvGoPublish
func pdkvGoPublish(h C.pdkv_handle, text *C.char) C.int32_t {
	return with(h, text, func(x *embed.Rank) (int, error) { return only(x.Publish()) })
}

//export pdkvGoDo
func pdkvGoDo(h C.pdkv_handle, orders *C.uint8_t, n C.size_t, text *C.char) C.int32_t {
	return with(h, text, func(x *embed.Rank) (int, error) { return only(x.Do(bytesOf(orders, n))) })
}

//export pdkvGoCollect
func pdkvGoCollect(h C.pdkv_handle, buf *C.uint8_t, capacity C.size_t, n *C.size_t, text *C.char) C.int32_t {
	return with(h, text, func(x *embed.Rank) (int, error) { return filled(unsafe.Pointer(buf), capacity, n, x.Collect) })
}

//export pdkvGoGone
func pdkvGoGone(h C.pdkv_handle, engine *C.char, n C.int64_t, generation C.uint64_t, text *C.char) C.int32_t {
	return with(h, text, func(x *embed.Rank) (int, error) { return only(x.Gone(incarnation(engine, n, generation))) })
}

//export pdkvGoAdmit
func pdkvGoAdmit(
	h C.pdkv_handle, leg C.int32_t, id *C.uint8_t, peer *C.char, n C.int64_t, generation C.uint64_t, ticket *C.char, m C.int64_t, text *C.char,
) C.int32_t {
	return with(h, text, func(x *embed.Scheduler) (int, error) {
		role := metadata.Prefill
		if leg == C.PDKV_DECODE {
			role = metadata.Decode
		}
		return only(x.Admit(role, transferID(id), incarnation(peer, n, generation), C.GoStringN(ticket, C.int(m))))
	})
}

//export pdkvGoQueue
func pdkvGoQueue(h C.pdkv_handle, t *C.pdkv_transfer, text *C.char) C.int32_t {
	return with(h, text, func(x *embed.Scheduler) (int, error) {
		return only(x.Queue(transferID(&t.id[0]), peerOf(t)))
	})
}

//export pdkvGoExpect
func pdkvGoExpect(h C.pdkv_handle, t *C.pdkv_transfer, text *C.char) C.int32_t {
	return with(h, text, func(x *embed.Scheduler) (int, error) { return only(x.Expect(transferOf(t))) })
}

//export pdkvGoOffer
func pdkvGoOffer(h C.pdkv_handle, t *C.pdkv_transfer, text *C.char) C.int32_t {
	return with(h, text, func(x *embed.Scheduler) (int, error) { return only(x.Offer(transferOf(t))) })
}

//export pdkvGoCancel
func pdkvGoCancel(h C.pdkv_handle, id *C.uint8_t, why *C.char, n C.int64_t, text *C.char) C.int32_t {
	return with(h, text, func(x *embed.Scheduler) (int, error) {
		return only(x.Cancel(transferID(id), C.GoStringN(why, C.int(n))))
	})
}

//export pdkvGoOrders
func pdkvGoOrders(h C.pdkv_handle, buf *C.uint8_t, capacity C.size_t, n *C.size_t, text *C.char) C.int32_t {
	return with(h, text, func(x *embed.Scheduler) (int, error) { return filled(unsafe.Pointer(buf), capacity, n, x.Orders) })
}

//export pdkvGoHear
func pdkvGoHear(h C.pdkv_handle, report *C.uint8_t, n C.size_t, text *C.char) C.int32_t {
	return with(h, text, func(x *embed.Scheduler) (int, error) { return only(x.Hear(bytesOf(report, n))) })
}

//export pdkvGoPoll
func pdkvGoPoll(h C.pdkv_handle, buf unsafe.Pointer, capacity C.size_t, n *C.size_t, text *C.char) C.int32_t {
	return with(h, text, func(x handle) (int, error) {
		used := 0
		count, err := x.Poll(lent((*byte)(buf), capacity), &used)
		*n = C.size_t(used)
		return count, err
	})
}

//export pdkvGoStatus
func pdkvGoStatus(h C.pdkv_handle, buf *C.char, capacity C.size_t, n *C.size_t, text *C.char) C.int32_t {
	return with(h, text, func(x handle) (int, error) {
		s, err := x.Status()
		if err != nil {
			return 0, err
		}
		return filled(unsafe.Pointer(buf), capacity, n, func(buf []byte, n *int) error { return embed.Take(s, buf, n) })
	})
}

// bytesOf copies a caller's bytes.
func bytesOf(p *C.uint8_t, n C.size_t) []byte { return C.GoBytes(unsafe.Pointer(p), C.int(n)) }

func transferID(id *C.uint8_t) (out kvplane.TransferID) {
	copy(out[:], lent((*byte)(id), C.size_t(len(out))))
	return out
}

func incarnation(name *C.char, n C.int64_t, generation C.uint64_t) metadata.Incarnation {
	return metadata.Incarnation{Engine: C.GoStringN(name, C.int(n)), Generation: uint64(generation)}
}

func peerOf(t *C.pdkv_transfer) metadata.Incarnation {
	return metadata.Incarnation{Engine: C.GoString(t.peer), Generation: uint64(t.generation)}
}

// transferOf copies a caller's transfer with all that it points to.
func transferOf(t *C.pdkv_transfer) *embed.Transfer {
	out := &embed.Transfer{
		ID: transferID(&t.id[0]), Peer: peerOf(t), From: int(t.from), To: int(t.to), Wait: wait(int64(t.wait_ms)),
		Prompt: append([]int32(nil), lent((*int32)(t.prompt), C.size_t(t.n_prompt))...),
	}
	for _, g := range lent(t.groups, C.size_t(t.n_groups)) {
		out.Groups = append(out.Groups, kvplane.BlockList{
			First: int(g.first), Blocks: append([]int32(nil), lent((*int32)(g.ids), C.size_t(g.count))...),
		})
	}
	return out
}

// wait is a number of milliseconds; what would not fit stays out of bounds.
func wait(ms int64) time.Duration {
	if most := int64(48 * time.Hour / time.Millisecond); ms > most {
		ms = most
	}
	if ms < 0 {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}
