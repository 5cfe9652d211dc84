package plane

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"pdrouter/bench/load"
	"pdrouter/kvplane/memory/view"
	"pdrouter/kvplane/nixl"
	"pdrouter/metadata"
)

// bareNIXL is one side's NIXL agent without a plane: what NIXL can do here by itself, over the same memory.
type bareNIXL struct {
	lib           *nixl.Library
	agent         *nixl.Agent
	thread        bool // NIXL's own progress thread
	peer          string
	local, remote *nixl.Prepared
	ended         []func() error
	heard         []string
}

// openBareNIXL starts an agent and registers the memory, if any.
func openBareNIXL(name string, memory []byte, thread bool) (b *bareNIXL, err error) {
	b = &bareNIXL{thread: thread}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("bench: bare nixl: %w", err), b.close())
		}
	}()
	if b.lib, err = nixl.Open(""); err != nil {
		return b, err
	}
	b.ended = append(b.ended, b.lib.Close)
	if b.agent, err = b.lib.NewAgent(name, nixl.AgentConfig{Progress: thread}); err != nil {
		return b, err
	}
	b.ended = append(b.ended, b.agent.Close)
	backend, err := b.agent.NewBackend("UCX", nil)
	if err != nil {
		return b, err
	}
	b.ended = append(b.ended, backend.Close)
	if err := b.agent.Use(backend); err != nil || memory == nil {
		return b, err
	}
	whole := nixl.Region{Address: view.Address(memory), Length: uint64(len(memory))}
	reg, err := b.agent.Register(nixl.Memory{Kind: nixl.DRAM, Regions: []nixl.Region{whole}})
	if err != nil {
		return b, err
	}
	b.ended = append(b.ended, reg.Close)
	return b, nil
}

// meet makes the other side known by its blob, and with remote memory tells NIXL all blocks of both sides.
func (b *bareNIXL) meet(blob []byte, local, remote metadata.Region) (err error) {
	if b.peer, err = b.agent.Load(blob); err != nil {
		return err
	}
	if err := b.agent.Connect(b.peer); err != nil || remote.Length == 0 {
		return err
	}
	if b.local, err = b.prepare("", local, 0, local.BlockStride); err == nil {
		b.remote, err = b.prepare(b.peer, remote, 0, remote.BlockStride)
	}
	return err
}

// prepare tells NIXL so many bytes of each block of a region, from an offset on.
func (b *bareNIXL) prepare(owner string, m metadata.Region, from, bytes uint64) (*nixl.Prepared, error) {
	list, err := b.agent.NewList(nixl.DRAM)
	if err != nil {
		return nil, err
	}
	for i := range m.Blocks {
		if err := list.Add(nixl.Region{Address: m.Base + uint64(i)*m.BlockStride + from, Length: bytes}); err != nil {
			return nil, err
		}
	}
	made, err := b.agent.PrepareList(owner, list)
	if err == nil {
		b.ended = append(b.ended, made.Close)
	}
	return made, errors.Join(err, list.Close())
}

func (b *bareNIXL) close() error {
	var errs []error
	for i := range b.ended {
		errs = append(errs, b.ended[len(b.ended)-1-i]())
	}
	b.ended = nil
	return errors.Join(errs...)
}

// next waits until something was heard, and returns it; "" when more is true no longer. An agent with a progress thread is
// looked at with pauses: on few CPUs the thread needs them.
func (b *bareNIXL) next(more func() bool) (string, error) {
	for len(b.heard) == 0 {
		if err := b.agent.Notifications(func(_ string, body []byte) { b.heard = append(b.heard, string(body)) }); err != nil {
			return "", err
		}
		if len(b.heard) == 0 && !more() {
			return "", nil
		}
		if b.thread {
			time.Sleep(time.Microsecond)
		} else {
			runtime.Gosched()
		}
	}
	said := b.heard[0]
	b.heard = b.heard[1:]
	return said, nil
}

// within is more for at most so long.
func within(d time.Duration) func() bool {
	start := time.Now()
	return func() bool { return time.Since(start) < d }
}

// ask says something and waits for the answer, which must be want.
func (b *bareNIXL) ask(say, want string) error {
	if err := b.agent.Notify(b.peer, []byte(say)); err != nil {
		return err
	}
	said, err := b.next(within(10 * time.Second))
	if err == nil && said != want {
		err = fmt.Errorf("%w: bare nixl answers %q; want %q", load.ErrVoid, said, want)
	}
	return err
}

// What bare agents say to each other: a number asks for that transfer.
const (
	bareEcho = "echo"
	bareDone = "done"
)

// trips measures there and back n times.
func (b *bareNIXL) trips(n int) (took []time.Duration, err error) {
	for range n {
		start := time.Now()
		if err := b.ask(bareEcho, bareEcho); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
	}
	return took, nil
}

// barePost is what one write by hand took its writer.
type barePost struct{ made, posted, since time.Duration }

// serve answers and writes what is asked for while more is true, and returns what its writes took. blocks gives both lists
// of a transfer.
func (b *bareNIXL) serve(more func() bool, blocks func(i int) (local, remote []int32)) (posts []barePost, err error) {
	for {
		said, err := b.next(more)
		switch {
		case err != nil || said == "":
			return posts, err
		case said == bareEcho:
			if err := b.agent.Notify(b.peer, []byte(bareEcho)); err != nil {
				return posts, err
			}
			continue
		}
		asked := time.Now()
		i, err := strconv.Atoi(said)
		if err != nil {
			return posts, fmt.Errorf("%w: bare nixl is asked for %q", load.ErrVoid, said)
		}
		local, remote := blocks(i)
		p, err := b.write(local, remote)
		if err != nil {
			return posts, err
		}
		p.since = time.Since(asked) - p.since
		posts = append(posts, p)
	}
}

// write makes, posts and ends one write; since is what it took beyond the post.
func (b *bareNIXL) write(local, remote []int32) (p barePost, err error) {
	start := time.Now()
	t, err := b.agent.NewIndexed(nixl.Write, b.local, local, b.remote, remote, []byte(bareDone))
	if err != nil {
		return p, err
	}
	p.made = time.Since(start)
	status, err := t.Post()
	p.posted = time.Since(start)
	for err == nil && status == nixl.InProgress {
		status, err = t.Status()
	}
	err = errors.Join(err, t.Close())
	p.since = time.Since(start) - p.posted
	return p, err
}

// openBare starts decode's bare agent, and makes prefill's known to it.
func (d *planeDecode) openBare(o PlaneOrder) (a PlaneAnswer, err error) {
	var memory []byte
	name := "bench-thread"
	if len(d.ranks) > 0 {
		memory, name = d.ranks[0].memory, fmt.Sprint(d.ranks[0].agent.Record().Agent, "-bare", o.First)
	}
	b, err := openBareNIXL(name, memory, o.Thread)
	if err != nil {
		return a, err
	}
	if d.bare == nil {
		d.bare = map[bool]*bareNIXL{}
	}
	d.bare[o.Thread] = b
	if o.Blob == nil { // it is only to live
		return a, nil
	}
	if a.Blob, err = b.agent.Metadata(); err != nil {
		return a, err
	}
	return a, b.meet(o.Blob, metadata.Region{}, metadata.Region{})
}

// ask has prefill's bare agent write, and checks what came.
func (d *planeDecode) ask(o PlaneOrder) (a PlaneAnswer, err error) {
	for i := o.First; i < o.First+o.Count; i++ {
		d.ranks[0].clear(i, o.Shape)
		start := time.Now()
		if err := d.bare[o.Thread].ask(strconv.Itoa(i), bareDone); err != nil {
			return a, err
		}
		a.Took = append(a.Took, time.Since(start))
		if err := d.ranks[0].check(i, o.Shape); err != nil {
			return a, err
		}
	}
	return a, nil
}
