package config

import (
	"fmt"
	"net"
	"strconv"

	"pdrouter/metadata"
	"pdrouter/router/connector"
	"pdrouter/router/dispatch"
)

// maxDataParallel is the most data-parallel ranks of one engine.
const maxDataParallel = 1024

// Ranks returns the entry of each of the engine's data-parallel ranks, or the engine's own if it has none. Each rank is an engine like
// any other, called <name>.dp<rank>, with its own load, pairs and side channel. Each further rank's side channel uses the next port.
func (e Engine) Ranks() []Engine {
	if e.DataParallel <= 1 {
		return []Engine{e}
	}
	out := make([]Engine, e.DataParallel)
	for k := range out {
		out[k] = e.rank(k)
	}
	return out
}

// rank returns the entry of one of the engine's data-parallel ranks.
func (e Engine) rank(k int) Engine {
	one := e
	one.Name = e.rankName(k)
	if host, port, err := net.SplitHostPort(e.SideChannel); err == nil {
		n, _ := strconv.Atoi(port)
		one.SideChannel = net.JoinHostPort(host, strconv.Itoa(n+k))
	}
	one.KVEvents = e.KVEvents.rank(k)
	return one
}

func (e Engine) rankName(k int) string { return e.Name + ".dp" + strconv.Itoa(k) }

// validateRanks checks the number of ranks, and that no other engine has their names.
func (e Engine) validateRanks(at, connectorName string, engines map[string]bool, v *faults) {
	key, is := at+".data_parallel", fmt.Sprintf("is %d", e.DataParallel)
	switch {
	case e.DataParallel == 0:
		return
	case e.DataParallel < 0 || e.DataParallel > maxDataParallel:
		v.add(key, is, fmt.Sprintf("1 to %d", maxDataParallel))
		return
	case !ranked(connectorName):
		v.add(key, is, "no data-parallel ranks for connector "+connectorName)
		return
	}
	if _, port, err := net.SplitHostPort(e.SideChannel); err == nil {
		if n, err := strconv.Atoi(port); err == nil && n+e.DataParallel-1 > 65535 {
			v.add(at+".side_channel", fmt.Sprintf("is %q", e.SideChannel), fmt.Sprintf("%d ports from there on, one for each data-parallel rank", e.DataParallel))
		}
	}
	if e.DataParallel == 1 {
		return
	}
	for k := range e.DataParallel {
		if engines[e.rankName(k)] {
			v.add(at+".name", fmt.Sprintf("is %q, whose rank %d has the name of another engine", e.Name, k), "a name of its own")
			return
		}
		engines[e.rankName(k)] = true
	}
}

// ranked reports whether engines of the connector may have data-parallel ranks that the gateway chooses among.
func ranked(connectorName string) bool {
	t := connector.Named(connectorName).Traits()
	return t.Stock != nil || t.Mode == dispatch.Alone
}

// validateBootstrap checks the port of the bootstrap server.
func (e Engine) validateBootstrap(at, connectorName string, prefill bool, v *faults) {
	switch {
	case e.BootstrapPort != 0 && (!connector.Named(connectorName).Traits().Meets || !prefill):
		v.add(at+".bootstrap_port", "is set", "it for prefill engines of connector sglang")
	case e.BootstrapPort < 0 || e.BootstrapPort > 65535:
		v.add(at+".bootstrap_port", fmt.Sprintf("is %d", e.BootstrapPort), "a port from 1 to 65535")
	}
}

// validateStock checks what only engines of stock vLLM have.
func (e Engine) validateStock(at, connectorName string, v *faults) {
	if connector.Named(connectorName).Traits().Stock == nil && (e.RequestIDRandomizationDisabled || e.TensorParallel != 0) {
		v.add(at+".request_id_randomization_disabled", "or tensor_parallel is set", "neither for connector "+connectorName)
	}
	if e.TensorParallel < 0 || e.TensorParallel > metadata.MaxRanks {
		v.add(at+".tensor_parallel", fmt.Sprintf("is %d", e.TensorParallel), fmt.Sprintf("1 to %d", metadata.MaxRanks))
	}
}

// Names returns the names that no other engine may have: its own, and those of its data-parallel ranks.
func (e Engine) Names() []string {
	all := []string{e.Name}
	if e.DataParallel > 1 {
		for k := range min(e.DataParallel, maxDataParallel) {
			all = append(all, e.rankName(k))
		}
	}
	return all
}
