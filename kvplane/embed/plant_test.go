package embed

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdrouter/internal/pdkvtest"
	"pdrouter/kvplane"
	"pdrouter/kvplane/memory"
	"pdrouter/metadata"
)

// Geometry of the tests' caches: head h, token t, layer l, block b.
const (
	layers, heads, headBytes, blockTokens, blocks = 2, 2, 16, 4, 8
)

// engine is one engine with all its handles in this process, driven as an embedder drives it.
type engine struct {
	t         testing.TB
	inc       metadata.Incarnation
	tp        int
	scheduler *Scheduler
	ranks     []*Rank
	memory    [][]byte
	seen      []found
	told      []byte // the orders of the last step that had any
}

// found is a result as a caller reads it.
type found struct {
	kind   Kind
	id     kvplane.TransferID
	reason kvplane.Reason
	tokens int32
	bytes  uint64
	blocks [][]int32
	text   string
}

func config(t testing.TB, text string) Config {
	t.Helper()
	c, err := ParseConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newEngine opens an engine and waits until it is published and its scheduler was told so.
func newEngine(t testing.TB, g *pdkvtest.Gateway, name string, role metadata.Role, tp int, more string) *engine {
	t.Helper()
	e := &engine{t: t, inc: metadata.Incarnation{Engine: name, Generation: uint64(time.Now().UnixNano())}, tp: tp}
	head := fmt.Sprintf(`engine: %s, role: %s, size: {tp: %d}, times: {lease: 5s, net_delay: 50ms}, log: {level: error}`, name, role, tp)
	s, err := OpenScheduler(config(t, fmt.Sprintf(`{kind: scheduler, control: {listen: "127.0.0.1:0"}, gateway: {record_keys: [%q]}, `, g.Keys)+head+`}`))
	if err != nil {
		t.Fatal(err)
	}
	e.scheduler = s
	t.Cleanup(func() { e.close() })
	token := g.Token(t, name, role)
	for i := range tp {
		r, err := OpenRank(config(t, fmt.Sprintf(`{kind: rank, generation: %d, rank: {tp: %d}, compatibility: same, gateway: {url: %q, token_file: %q, record_keys: [%q]},
			cache: {block_tokens: %d, heads: %d, head_bytes: %d, dtype: f32}, transport: {name: tcp}, `+head+more+`}`,
			e.inc.Generation, i, g.URL, token, g.Keys, blockTokens, heads, headBytes)))
		if err != nil {
			t.Fatal(err)
		}
		e.ranks = append(e.ranks, r)
		regions, memory := e.cache()
		e.memory = append(e.memory, memory)
		if err := r.Register(regions); err != nil {
			t.Fatal(err)
		}
		if err := r.Publish(); err != nil {
			t.Fatal(err)
		}
	}
	e.until(func() bool {
		published := 0
		for i := range e.seen {
			if e.seen[i].kind == Published {
				published++
			}
		}
		return published == tp
	})
	e.step() // what was collected before may have been of earlier
	return e
}

// local is how many heads a rank keeps.
func (e *engine) local() int { return max(1, heads/e.tp) }

// cache allocates the memory of one rank.
func (e *engine) cache() ([]metadata.Region, []byte) {
	e.t.Helper()
	stride := e.local() * blockTokens * headBytes
	b, free, err := memory.Allocate(layers * blocks * stride)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = free() })
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	var regions []metadata.Region
	for l := range layers {
		regions = append(regions, metadata.Region{
			Layer: l, Planes: 1, Base: memory.Of(b).Base + uint64(l*blocks*stride), Length: uint64(blocks * stride), Blocks: blocks,
			BlockStride: uint64(stride), PlaneStride: uint64(stride), HeadStride: blockTokens * headBytes, TokenStride: headBytes,
		})
	}
	return regions, b
}

// row is the bytes of one head of one token.
func (e *engine) row(layer, block, head, place int) []byte {
	n := e.local()
	at := (((layer*blocks+block)*n+head%n)*blockTokens + place) * headBytes
	return e.memory[head/n][at : at+headBytes]
}

// step carries what is said between scheduler and ranks, as an embedder does in each of its steps.
func (e *engine) step() {
	e.t.Helper()
	orders := e.taken(e.scheduler.Orders)
	if len(orders) > 0 {
		e.told = orders
	}
	for _, r := range e.ranks {
		if err := r.Do(orders); err != nil {
			e.t.Fatal(err)
		}
		if err := e.scheduler.Hear(e.taken(r.Collect)); err != nil {
			e.t.Fatal(err)
		}
		e.polled(r)
	}
	e.polled(e.scheduler)
}

// taken calls with a buffer of nothing first, as who does not know the size.
func (e *engine) taken(from func([]byte, *int) error) []byte {
	e.t.Helper()
	n := -1
	err := from(nil, &n)
	if err == nil {
		return nil
	}
	if FaultOf(err) != Room || n <= 0 {
		e.t.Fatalf("%v, %d bytes", err, n)
	}
	b := make([]byte, n)
	if err := from(b, &n); err != nil || n != len(b) {
		e.t.Fatalf("%v, %d bytes of %d", err, n, len(b))
	}
	return b
}

// polled decodes results as the header describes them.
func (e *engine) polled(h interface {
	Poll([]byte, *int) (int, error)
}) {
	e.t.Helper()
	buf, used := make([]byte, 1<<16), 0
	n, err := h.Poll(buf, &used)
	if err != nil {
		e.t.Fatal(err)
	}
	for b, ne := buf[:used], binary.NativeEndian; n > 0; n-- {
		size := ne.Uint32(b)
		x := found{kind: Kind(ne.Uint32(b[4:])), id: kvplane.TransferID(b[8:24]), reason: kvplane.Reason(ne.Uint32(b[24:])), tokens: int32(ne.Uint32(b[44:])), bytes: ne.Uint64(b[56:])}
		at := 72 + 16*ne.Uint32(b[48:])
		groups := ne.Uint32(b[52:])
		ids := at + 4*groups
		for g := range groups {
			var list []int32
			for range ne.Uint32(b[at+4*g:]) {
				list = append(list, int32(ne.Uint32(b[ids:])))
				ids += 4
			}
			x.blocks = append(x.blocks, list)
		}
		x.text = string(b[ids : ids+ne.Uint32(b[64:])])
		e.seen, b = append(e.seen, x), b[size:]
	}
}

func (e *engine) find(kind Kind, id kvplane.TransferID) *found {
	for i := range e.seen {
		if e.seen[i].kind == kind && e.seen[i].id == id {
			return &e.seen[i]
		}
	}
	return nil
}

// until steps these engines, whenever one of their descriptors says that there is something, until done.
func (e *engine) until(done func() bool, others ...*engine) {
	e.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	all := append(others, e)
	for {
		for _, x := range all {
			x.step()
		}
		if done() {
			return
		}
		if time.Now().After(deadline) {
			e.t.Fatalf("not done; seen %+v", e.seen)
		}
		wait(e.t, time.Until(deadline), all...)
	}
}

// rings says whether a descriptor of the engines is readable now.
func rings(t testing.TB, all ...*engine) bool {
	t.Helper()
	return wait(t, 0, all...) > 0
}

// wait sleeps until a descriptor of the engines is readable, and says how many are.
func wait(t testing.TB, most time.Duration, all ...*engine) int {
	t.Helper()
	var fds []unix.PollFd
	for _, e := range all {
		fds = append(fds, unix.PollFd{Fd: int32(e.scheduler.FD()), Events: unix.POLLIN})
		for _, r := range e.ranks {
			fds = append(fds, unix.PollFd{Fd: int32(r.FD()), Events: unix.POLLIN})
		}
	}
	n, err := unix.Poll(fds, int(most.Milliseconds()))
	if err != nil && err != unix.EINTR {
		t.Fatal(err)
	}
	return n
}

func (e *engine) close() {
	for _, r := range e.ranks {
		if err := r.Close(); err != nil {
			e.t.Error(err)
		}
	}
	if err := e.scheduler.Close(); err != nil {
		e.t.Error(err)
	}
}

// status is a handle's JSON.
func status(t testing.TB, h interface{ Status() ([]byte, error) }) map[string]any {
	t.Helper()
	b, err := h.Status()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// same compares n tokens of two block lists of two engines, byte for byte.
func same(t testing.TB, p, d *engine, from, at []int32, n int) {
	t.Helper()
	for l := range layers {
		for h := range heads {
			for i := range n {
				x, y := p.row(l, int(from[i/blockTokens]), h, i%blockTokens), d.row(l, int(at[i/blockTokens]), h, i%blockTokens)
				if !bytes.Equal(x, y) {
					t.Fatalf("layer %d head %d token %d: got %x; want %x", l, h, i, y, x)
				}
			}
		}
	}
}
