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
	Device  uint64 // 0 for DRAM
}

// Registration is memory that an agent has registered.
type Registration struct {
	a     *Agent
	dlist uintptr
}

// Register registers memory, so that it can be written from and, by peers that load the metadata afterwards, into.
// It must stay mapped until the registration is closed.
func (a *Agent) Register(kind Kind, regions []Region) (*Registration, error) {
	l := a.l
	r := &Registration{a: a}
	if err := l.call(l.c.createRegDlist, uintptr(kind), uintptr(unsafe.Pointer(&r.dlist))).err("create_reg_dlist"); err != nil {
		return nil, err
	}
	var none [1]byte // the descriptors' own metadata
	err := error(nil)
	for _, m := range regions {
		if err = l.call(l.c.regDlistAddDesc, r.dlist, uintptr(m.Address), uintptr(m.Length), uintptr(m.Device), uintptr(unsafe.Pointer(&none)), 0).err("reg_dlist_add_desc"); err != nil {
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

// descriptors makes a C list of the regions; the caller destroys it.
func (l *Library) descriptors(kind Kind, regions []Region) (uintptr, error) {
	var list uintptr
	if err := l.call(l.c.createXferDlist, uintptr(kind), uintptr(unsafe.Pointer(&list))).err("create_xfer_dlist"); err != nil {
		return 0, err
	}
	for _, m := range regions {
		if err := l.call(l.c.xferDlistAddDesc, list, uintptr(m.Address), uintptr(m.Length), uintptr(m.Device)).err("xfer_dlist_add_desc"); err != nil {
			return 0, errors.Join(err, l.call(l.c.destroyXferDlist, list).err("destroy_xfer_dlist"))
		}
	}
	return list, nil
}

// Prepared is a list of regions made ready once, from which transfers choose by index.
type Prepared struct {
	a      *Agent
	handle uintptr
	n      int
}

// Prepare makes a list ready: this agent's own regions if owner is "", else those of a peer whose metadata is loaded.
func (a *Agent) Prepare(owner string, kind Kind, regions []Region) (*Prepared, error) {
	name, err := cstring(owner)
	if err != nil {
		return nil, err
	}
	l := a.l
	list, err := l.descriptors(kind, regions)
	if err != nil {
		return nil, err
	}
	defer l.call(l.c.destroyXferDlist, list)
	p := &Prepared{a: a, n: len(regions)}
	err = l.call(l.c.prepXferDlist, a.handle, uintptr(unsafe.Pointer(name)), list, uintptr(unsafe.Pointer(&p.handle)), a.plain).err("prep_xfer_dlist")
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
