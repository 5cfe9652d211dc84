package nixl

import (
	"errors"
	"runtime"
	"unsafe"
)

// Region is a stretch of memory: of this process, or of a peer in its own address space.
type Region struct {
	Address uint64
	Length  uint64 // bytes
	Device  uint64 // the GPU of VRAM; 0 for DRAM
}

// Registration is memory that an agent has registered.
type Registration struct {
	a     *Agent
	dlist uintptr
}

// Register registers memory, so that it can be written from and, by peers that load the metadata afterwards, into.
// It must stay mapped until the registration is closed.
func (a *Agent) Register(m Memory) (*Registration, error) {
	l := a.l
	r := &Registration{a: a}
	if err := l.call(l.c.createRegDlist, uintptr(m.Kind), uintptr(unsafe.Pointer(&r.dlist))).err("create_reg_dlist"); err != nil {
		return nil, err
	}
	var none [1]byte // the descriptors' own metadata
	err := error(nil)
	for _, x := range m.Regions {
		if err = l.call(l.c.regDlistAddDesc, r.dlist, uintptr(x.Address), uintptr(x.Length), uintptr(x.Device), uintptr(unsafe.Pointer(&none)), 0).err("reg_dlist_add_desc"); err != nil {
			break
		}
	}
	runtime.KeepAlive(&none)
	if err == nil {
		err = l.call(l.c.registerMem, a.handle, r.dlist, a.plain).err("register_mem")
	}
	if err != nil {
		return nil, errors.Join(err, l.call(l.c.destroyRegDlist, r.dlist).err("destroy_reg_dlist"))
	}
	return r, nil
}

// Close deregisters the memory. It is no fence: bytes that a peer has on their way may land all the same.
// Safe to call twice; the agent must still be open.
func (r *Registration) Close() error {
	if r.dlist == 0 {
		return nil
	}
	l := r.a.l
	err := errors.Join(
		l.call(l.c.deregisterMem, r.a.handle, r.dlist, r.a.plain).err("deregister_mem"),
		l.call(l.c.destroyRegDlist, r.dlist).err("destroy_reg_dlist"),
	)
	r.dlist = 0
	return err
}

// Memory is regions of one kind.
type Memory struct {
	Kind    Kind
	Regions []Region
}

// List is a list of regions of one kind that is being made.
type List struct {
	l      *Library
	handle uintptr
	n      int
}

// NewList begins a list.
func (a *Agent) NewList(kind Kind) (*List, error) {
	d := &List{l: a.l}
	if err := a.l.call(a.l.c.createXferDlist, uintptr(kind), uintptr(unsafe.Pointer(&d.handle))).err("create_xfer_dlist"); err != nil {
		return nil, err
	}
	return d, nil
}

// Add appends one region.
func (d *List) Add(m Region) error {
	d.n++
	if s := d.l.call(d.l.c.xferDlistAddDesc, d.handle, uintptr(m.Address), uintptr(m.Length), uintptr(m.Device)); s != Success {
		return s.err("xfer_dlist_add_desc")
	}
	return nil
}

// Close gives the list back. Safe to call twice; what was prepared from it stays.
func (d *List) Close() error {
	if d.handle == 0 {
		return nil
	}
	err := d.l.call(d.l.c.destroyXferDlist, d.handle).err("destroy_xfer_dlist")
	d.handle = 0
	return err
}

// list makes a list of regions; the caller closes it.
func (a *Agent) list(m Memory) (*List, error) {
	d, err := a.NewList(m.Kind)
	if err != nil {
		return nil, err
	}
	for _, r := range m.Regions {
		if err := d.Add(r); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// Prepared is a list of regions made ready once, from which transfers choose by index.
type Prepared struct {
	a      *Agent
	handle uintptr
	n      int
}

// Prepare makes regions ready: this agent's own if owner is "", else those of a peer whose metadata is loaded.
func (a *Agent) Prepare(owner string, m Memory) (*Prepared, error) {
	d, err := a.list(m)
	if err != nil {
		return nil, err
	}
	p, err := a.PrepareList(owner, d)
	return p, errors.Join(err, d.Close())
}

// PrepareList is Prepare of a list, which the caller still closes.
func (a *Agent) PrepareList(owner string, d *List) (*Prepared, error) {
	name, err := cstring(owner)
	if err != nil {
		return nil, err
	}
	p := &Prepared{a: a, n: d.n}
	err = a.l.call(a.l.c.prepXferDlist, a.handle, uintptr(unsafe.Pointer(name)), d.handle, uintptr(unsafe.Pointer(&p.handle)), a.plain).err("prep_xfer_dlist")
	runtime.KeepAlive(name)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Len returns the number of regions.
func (p *Prepared) Len() int { return p.n }

// Close gives the list back. Safe to call twice; the agent must still be open.
func (p *Prepared) Close() error {
	if p.handle == 0 {
		return nil
	}
	err := p.a.l.call(p.a.l.c.releaseXferDlistHandle, p.a.handle, p.handle).err("release_xfer_dlist_handle")
	p.handle = 0
	return err
}
