package nixl

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"pdrouter/kvplane/memory/view"
)

// AgentConfig configures an agent. The zero value has no threads of its own and no guard: whoever owns it polls it,
// from one goroutine at a time.
type AgentConfig struct {
	// Progress starts NIXL's progress thread. It costs most of a core while idle.
	Progress bool
	// ProgressDelay is the thread's pause in µs.
	ProgressDelay uint64
	// Sync guards against calls from several threads at once.
	Sync Sync
	// Workers is the number of a backend's workers; 0 means its default.
	Workers uint32
}

// Agent is one NIXL agent. Unless created with a Sync it must not be used by two goroutines at once. Whatever it made
// is closed before it.
type Agent struct {
	l      *Library
	name   string
	handle uintptr
	notifs uintptr // a map, reused by Notifications
	with   uintptr // optional arguments, reused: a notification and its presence
	plain  uintptr // optional arguments without a notification

	// Of Notifications, which nobody calls twice at once: a look that finds nothing allocates nothing.
	looks caller
	found uintptr
}

// NewAgent makes an agent. Peers know it by its name, which must never have named another agent in their eyes.
func (l *Library) NewAgent(name string, cfg AgentConfig) (*Agent, error) {
	if l.closed.Load() {
		return nil, fmt.Errorf("nixl: %s: closed", l.path)
	}
	if name == "" {
		return nil, errors.New("nixl: agent: its name is empty")
	}
	cname, err := cstring(name)
	if err != nil {
		return nil, err
	}
	c := &agentConfig{
		progressThread: cfg.Progress,
		threadSync:     cfg.Sync,
		workers:        max(cfg.Workers, 1),
		progressDelay:  cfg.ProgressDelay,
	}
	a := &Agent{l: l, name: name, looks: caller{l: l}}
	err = l.call(l.c.createConfiguredAgent, uintptr(unsafe.Pointer(cname)), uintptr(unsafe.Pointer(c)), uintptr(unsafe.Pointer(&a.handle))).err("create_configured_agent")
	runtime.KeepAlive(cname)
	runtime.KeepAlive(c)
	if err != nil {
		return nil, err
	}
	l.agents.Add(1)
	err = errors.Join(
		l.call(l.c.createNotifMap, uintptr(unsafe.Pointer(&a.notifs))).err("create_notif_map"),
		l.call(l.c.createOptArgs, uintptr(unsafe.Pointer(&a.with))).err("create_opt_args"),
		l.call(l.c.createOptArgs, uintptr(unsafe.Pointer(&a.plain))).err("create_opt_args"),
	)
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// Name returns the name given to NewAgent.
func (a *Agent) Name() string { return a.name }

// Close destroys the agent: its connections, its queues and its sockets are gone when it returns. Safe to call twice.
func (a *Agent) Close() error {
	if a.handle == 0 {
		return nil
	}
	l := a.l
	var errs []error
	for _, args := range []*uintptr{&a.with, &a.plain} {
		if *args != 0 {
			errs = append(errs, l.call(l.c.destroyOptArgs, *args).err("destroy_opt_args"))
			*args = 0
		}
	}
	if a.notifs != 0 {
		errs = append(errs, l.call(l.c.destroyNotifMap, a.notifs).err("destroy_notif_map"))
		a.notifs = 0
	}
	errs = append(errs, l.call(l.c.destroyAgent, a.handle).err("destroy_agent"))
	a.handle = 0
	l.agents.Add(-1)
	return errors.Join(errs...)
}

// Plugins names the backends that this installation has.
func (a *Agent) Plugins() ([]string, error) {
	l := a.l
	var list, n uintptr
	if err := l.call(l.c.getAvailablePlugins, a.handle, uintptr(unsafe.Pointer(&list))).err("get_available_plugins"); err != nil {
		return nil, err
	}
	defer l.call(l.c.destroyStringList, list)
	if err := l.call(l.c.stringListSize, list, uintptr(unsafe.Pointer(&n))).err("string_list_size"); err != nil {
		return nil, err
	}
	names := make([]string, 0, n)
	for i := range n {
		var s uintptr
		if err := l.call(l.c.stringListGet, list, i, uintptr(unsafe.Pointer(&s))).err("string_list_get"); err != nil {
			return nil, err
		}
		names = append(names, gostring(s))
	}
	return names, nil
}

// Backend is a plugin at work in an agent, which owns it; Close gives back only the handle.
type Backend struct {
	l      *Library
	handle uintptr
}

// NewBackend starts a plugin ("UCX") with its default parameters, changed by options. It takes up to half a second.
func (a *Agent) NewBackend(plugin string, options map[string]string) (*Backend, error) {
	l := a.l
	name, err := cstring(plugin)
	if err != nil {
		return nil, err
	}
	var mems, params uintptr
	err = l.call(l.c.getPluginParams, a.handle, uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&mems)), uintptr(unsafe.Pointer(&params))).err("get_plugin_params " + plugin)
	runtime.KeepAlive(name)
	if err != nil {
		return nil, err
	}
	defer l.call(l.c.destroyMemList, mems)
	defer l.call(l.c.destroyParams, params)
	for k, v := range options {
		key, kerr := cstring(k)
		value, verr := cstring(v)
		if err := errors.Join(kerr, verr); err != nil {
			return nil, err
		}
		err := l.call(l.c.paramsAdd, params, uintptr(unsafe.Pointer(key)), uintptr(unsafe.Pointer(value))).err("params_add " + k)
		runtime.KeepAlive(key)
		runtime.KeepAlive(value)
		if err != nil {
			return nil, err
		}
	}
	b := &Backend{l: l}
	err = l.call(l.c.createBackend, a.handle, uintptr(unsafe.Pointer(name)), params, uintptr(unsafe.Pointer(&b.handle))).err("create_backend " + plugin)
	runtime.KeepAlive(name)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Close gives the handle back. Safe to call twice.
func (b *Backend) Close() error {
	if b.handle == 0 {
		return nil
	}
	err := b.l.call(b.l.c.destroyBackend, b.handle).err("destroy_backend")
	b.handle = 0
	return err
}

// Use makes every later call of the agent that may name a backend name this one.
func (a *Agent) Use(b *Backend) error {
	l := a.l
	return errors.Join(
		l.call(l.c.optArgsAddBackend, a.with, b.handle).err("opt_args_add_backend"),
		l.call(l.c.optArgsAddBackend, a.plain, b.handle).err("opt_args_add_backend"),
	)
}

// Metadata returns what peers must Load: the agent's name, its connections and its registered memory.
func (a *Agent) Metadata() ([]byte, error) {
	l := a.l
	var data, n uintptr
	if err := l.call(l.c.getLocalMD, a.handle, uintptr(unsafe.Pointer(&data)), uintptr(unsafe.Pointer(&n))).err("get_local_md"); err != nil {
		return nil, err
	}
	defer l.call(l.free, data)
	return bytes.Clone(view.Bytes(uint64(data), uint64(n))), nil
}

// Load makes a peer known by its metadata and returns its name. Loading under a name that is known already fails.
func (a *Agent) Load(metadata []byte) (string, error) {
	if len(metadata) == 0 {
		return "", InvalidParam.err("load_remote_md")
	}
	l := a.l
	var name uintptr
	err := l.call(l.c.loadRemoteMD, a.handle, uintptr(unsafe.Pointer(&metadata[0])), uintptr(len(metadata)), uintptr(unsafe.Pointer(&name))).err("load_remote_md")
	runtime.KeepAlive(metadata)
	if err != nil {
		return "", err
	}
	defer l.call(l.free, name)
	return gostring(name), nil
}

// Knows says whether a peer's metadata is loaded.
func (a *Agent) Knows(peer string) bool {
	name, err := cstring(peer)
	if err != nil {
		return false
	}
	d, err := a.NewList(DRAM)
	if err != nil {
		return false
	}
	defer d.Close()
	s := a.l.call(a.l.c.checkRemoteMD, a.handle, uintptr(unsafe.Pointer(name)), d.handle)
	runtime.KeepAlive(name)
	return s == Success
}

// Connect starts the connection to a peer whose metadata is loaded.
func (a *Agent) Connect(peer string) error {
	name, err := cstring(peer)
	if err != nil {
		return err
	}
	err = a.l.call(a.l.c.agentMakeConnection, a.handle, uintptr(unsafe.Pointer(name)), a.plain).err("agent_make_connection " + peer)
	runtime.KeepAlive(name)
	return err
}

// Forget drops a peer's metadata and its connection. No transfer to it may be in progress.
func (a *Agent) Forget(peer string) error {
	name, err := cstring(peer)
	if err != nil {
		return err
	}
	err = a.l.call(a.l.c.invalidateRemoteMD, a.handle, uintptr(unsafe.Pointer(name))).err("invalidate_remote_md " + peer)
	runtime.KeepAlive(name)
	return err
}

// cstring returns the first of the bytes of s and a NUL.
func cstring(s string) (*byte, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return nil, fmt.Errorf("nixl: %q: a name has a NUL byte", s)
	}
	return unsafe.SliceData(append([]byte(s), 0)), nil
}

// gostring copies a NUL-terminated string of C's.
func gostring(address uintptr) string {
	if address == 0 {
		return ""
	}
	n := uint64(0)
	for view.Bytes(uint64(address)+n, 1)[0] != 0 {
		n++
	}
	return string(view.Bytes(uint64(address), n))
}
