package nixl

import (
	"bytes"
	"runtime"
	"unsafe"

	"pdrouter/kvplane/memory/view"
)

// Notify sends a message to a peer. Success is no promise of delivery, and messages keep no order.
func (a *Agent) Notify(peer string, message []byte) error {
	name, err := cstring(peer)
	if err != nil {
		return err
	}
	data := message
	if len(data) == 0 {
		data = make([]byte, 1) // an address for no bytes
	}
	err = a.l.call(a.l.c.genNotif, a.handle, uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&data[0])), uintptr(len(message)), a.plain).err("gen_notif to " + peer)
	runtime.KeepAlive(name)
	runtime.KeepAlive(data)
	return err
}

// Notifications drives the agent on and calls visit for each message that has come, with a copy of it and the name
// that its sender gave itself.
func (a *Agent) Notifications(visit func(sender string, message []byte)) error {
	l := a.l
	if err := a.looks.call(l.c.getNotifs, a.handle, a.notifs, a.plain).err("get_notifs"); err != nil {
		return err
	}
	a.found = 0
	// The agent is on the heap, which moves nothing.
	if err := a.looks.call(l.c.notifMapSize, a.notifs, uintptr(unsafe.Pointer(&a.found))).err("notif_map_size"); err != nil || a.found == 0 {
		return err
	}
	for i := range a.found {
		if err := a.notificationsOf(i, visit); err != nil {
			return err
		}
	}
	return l.call(l.c.notifMapClear, a.notifs).err("notif_map_clear")
}

// notificationsOf visits what the i-th sender of the map has sent.
func (a *Agent) notificationsOf(i uintptr, visit func(sender string, message []byte)) error {
	l := a.l
	var name, n uintptr
	if err := l.call(l.c.notifMapGetAgentAt, a.notifs, i, uintptr(unsafe.Pointer(&name))).err("notif_map_get_agent_at"); err != nil {
		return err
	}
	// The C functions that follow want the name; the map's own copy of it serves.
	if err := l.call(l.c.notifMapGetNotifsSize, a.notifs, name, uintptr(unsafe.Pointer(&n))).err("notif_map_get_notifs_size"); err != nil {
		return err
	}
	sender := gostring(name)
	for j := range n {
		var data, length uintptr
		if err := l.call(l.c.notifMapGetNotif, a.notifs, name, j, uintptr(unsafe.Pointer(&data)), uintptr(unsafe.Pointer(&length))).err("notif_map_get_notif"); err != nil {
			return err
		}
		visit(sender, bytes.Clone(view.Bytes(uint64(data), uint64(length))))
	}
	return nil
}
