package nixl

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// ErrInProgress is the cause when a transfer in progress is closed.
var ErrInProgress = errors.New("transfer is in progress")

// Transfer is one request. It is posted once, its status asked for until it has ended, and then closed.
type Transfer struct {
	a      *Agent
	handle uintptr
	ended  bool // it is not in progress
}

// NewTransfer makes a request that copies region i of local to or from region i of remote, which have equal lengths. A nil notify sends
// no notification; any other is delivered to the peer once all the data are there.
func (a *Agent) NewTransfer(op Op, local, remote Memory, peer string, notify []byte) (*Transfer, error) {
	if n, m := len(local.Regions), len(remote.Regions); n != m || n == 0 {
		return nil, fmt.Errorf("nixl: create_xfer_req: %d local and %d remote regions", n, m)
	}
	name, err := cstring(peer)
	if err != nil {
		return nil, err
	}
	args, err := a.arguments(notify)
	if err != nil {
		return nil, err
	}
	l := a.l
	from, err := a.list(local)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	to, err := a.list(remote)
	if err != nil {
		return nil, err
	}
	defer to.Close()
	t := &Transfer{a: a, ended: true}
	err = l.call(l.c.createXferReq, a.handle, uintptr(op), from.handle, to.handle, uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&t.handle)), args).err("create_xfer_req to " + peer)
	runtime.KeepAlive(name)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// NewIndexed is NewTransfer between two prepared lists: region localAt[i] of local and remoteAt[i] of remote.
func (a *Agent) NewIndexed(op Op, local *Prepared, localAt []int32, remote *Prepared, remoteAt []int32, notify []byte) (*Transfer, error) {
	if len(localAt) != len(remoteAt) || len(localAt) == 0 {
		return nil, fmt.Errorf("nixl: make_xfer_req: %d local and %d remote indices", len(localAt), len(remoteAt))
	}
	for i := range localAt {
		if l, r := int(localAt[i]), int(remoteAt[i]); l < 0 || l >= local.n || r < 0 || r >= remote.n {
			return nil, fmt.Errorf("nixl: make_xfer_req: index %d of %d local or %d of %d remote regions", l, local.n, r, remote.n)
		}
	}
	args, err := a.arguments(notify)
	if err != nil {
		return nil, err
	}
	l := a.l
	t := &Transfer{a: a, ended: true}
	err = l.call(l.c.makeXferReq, a.handle, uintptr(op),
		local.handle, uintptr(unsafe.Pointer(&localAt[0])), uintptr(len(localAt)),
		remote.handle, uintptr(unsafe.Pointer(&remoteAt[0])), uintptr(len(remoteAt)),
		uintptr(unsafe.Pointer(&t.handle)), args).err("make_xfer_req")
	runtime.KeepAlive(localAt)
	runtime.KeepAlive(remoteAt)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// arguments returns the optional arguments of a request with this notification.
func (a *Agent) arguments(notify []byte) (uintptr, error) {
	if notify == nil {
		return a.plain, nil
	}
	l := a.l
	data := notify
	if len(data) == 0 {
		data = make([]byte, 1) // an address for no bytes
	}
	err := errors.Join(
		l.call(l.c.optArgsSetNotifMsg, a.with, uintptr(unsafe.Pointer(&data[0])), uintptr(len(notify))).err("opt_args_set_notif_msg"),
		l.call(l.c.optArgsSetHasNotif, a.with, 1).err("opt_args_set_has_notif"),
	)
	runtime.KeepAlive(data)
	return a.with, err
}

// Post starts the transfer and returns Success if it has ended already, InProgress if not. After an error some of it
// may have gone out; Status says when nothing of it is under way any more.
func (t *Transfer) Post() (Status, error) {
	if t.handle == 0 {
		return InvalidState, InvalidState.err("post_xfer_req")
	}
	if !t.ended {
		return InProgress, fmt.Errorf("nixl: post_xfer_req: %w", ErrInProgress)
	}
	return t.saw(t.a.l.call(t.a.l.c.postXferReq, t.a.handle, t.handle, 0), "post_xfer_req")
}

// Status asks how the transfer stands, which is also what drives it, and its notification, on.
func (t *Transfer) Status() (Status, error) {
	if t.handle == 0 {
		return InvalidState, InvalidState.err("get_xfer_status")
	}
	return t.saw(t.a.l.call(t.a.l.c.getXferStatus, t.a.handle, t.handle), "get_xfer_status")
}

func (t *Transfer) saw(s Status, op string) (Status, error) {
	t.ended = s != InProgress
	if s == InProgress {
		return s, nil
	}
	return s, s.err(op)
}

// Close gives the request back. It refuses one in progress, because its bytes would land all the same.
// Safe to call twice; the agent must still be open.
func (t *Transfer) Close() error {
	if t.handle == 0 {
		return nil
	}
	if !t.ended {
		return fmt.Errorf("nixl: release_xfer_req: %w", ErrInProgress)
	}
	return t.release()
}

// Abandon gives the request back even if it is in progress, as the last thing before its agent is closed. Its bytes
// may land until then.
func (t *Transfer) Abandon() error {
	if t.handle == 0 {
		return nil
	}
	return t.release()
}

func (t *Transfer) release() error {
	l := t.a.l
	if err := l.call(l.c.releaseXferReq, t.a.handle, t.handle).err("release_xfer_req"); err != nil {
		return err
	}
	err := l.call(l.c.destroyXferReq, t.handle).err("destroy_xfer_req")
	t.handle = 0
	return err
}
