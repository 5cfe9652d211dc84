package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// KVEvents is where an engine publishes which blocks its prefix cache holds: vLLM with --kv-events-config, SGLang with --kv-events-config.
type KVEvents struct {
	// Endpoint is where the engine publishes, for example "tcp://10.0.0.7:5557", which the gateway connects to; or "tcp://*:5557", where the
	// gateway listens and the engine connects to it. Of an engine with data_parallel that of rank 0: engines add the rank to the port.
	// Neither side is authenticated, and events contain the tokens of prompts. Default: the engine's blocks are not followed.
	Endpoint string `yaml:"endpoint"`
	// ReplayEndpoint is where the engine sends old events again, for example "tcp://10.0.0.7:5558", with the rank added to the port as well.
	// Default: none. Then the gateway knows only of blocks that come after it has connected, and forgets all blocks of the engine when a
	// connection breaks or an event is lost.
	ReplayEndpoint string `yaml:"replay_endpoint"`
}

// Publisher returns host:port that the gateway connects to, or on which it listens for the engine; "" if the engine is not followed.
func (k KVEvents) Publisher() (address string, listens bool) {
	host, port, ok := hostPort(k.Endpoint)
	if !ok {
		return "", false
	}
	if anyAddress(host) {
		return net.JoinHostPort(strings.TrimPrefix(host, "*"), strconv.Itoa(port)), true
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), false
}

// Replayer returns host:port where the engine sends old events again; "" if it does not.
func (k KVEvents) Replayer() string {
	host, port, ok := hostPort(k.ReplayEndpoint)
	if !ok {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// anyAddress reports whether host stands for all addresses of the machine.
func anyAddress(host string) bool { return host == "*" || host == "0.0.0.0" || host == "::" }

// hostPort reads an endpoint, tcp://host:port.
func hostPort(endpoint string) (host string, port int, ok bool) {
	rest, tcp := strings.CutPrefix(endpoint, "tcp://")
	host, digits, err := net.SplitHostPort(rest)
	port, perr := strconv.Atoi(digits)
	return host, port, tcp && err == nil && perr == nil && host != "" && !strings.ContainsAny(host, " \t/@") && port >= 1 && port <= 65535
}

// rank returns the endpoints of a data-parallel rank.
func (k KVEvents) rank(rank int) KVEvents {
	for _, at := range []*string{&k.Endpoint, &k.ReplayEndpoint} {
		if host, port, ok := hostPort(*at); ok {
			*at = "tcp://" + net.JoinHostPort(host, strconv.Itoa(port+rank))
		}
	}
	return k
}

// validateKVEvents checks where an engine publishes. endpoints has those of the engines before it.
func (e Engine) validateKVEvents(at string, endpoints map[string]bool, v *faults) {
	k, key := e.KVEvents, at+".kv_events"
	if k.Endpoint == "" {
		if k.ReplayEndpoint != "" {
			v.add(key+".endpoint", "is empty", "it beside replay_endpoint")
		}
		return
	}
	for _, f := range []struct{ key, endpoint string }{{".endpoint", k.Endpoint}, {".replay_endpoint", k.ReplayEndpoint}} {
		host, port, ok := hostPort(f.endpoint)
		switch last := port + max(e.DataParallel, 1) - 1; {
		case f.endpoint == "":
			continue
		case !ok || f.key == ".replay_endpoint" && anyAddress(host):
			v.add(key+f.key, fmt.Sprintf("is %q", f.endpoint), "tcp://host:port, such as tcp://10.0.0.7:5557")
			continue
		case last > 65535:
			v.add(key+f.key, fmt.Sprintf("is %q", f.endpoint), fmt.Sprintf("%d ports from there on, one for each data-parallel rank", e.DataParallel))
			continue
		}
		if anyAddress(host) {
			host = "*"
		}
		for k := range min(max(e.DataParallel, 1), maxDataParallel) {
			one := net.JoinHostPort(host, strconv.Itoa(port+k))
			if endpoints[one] {
				v.add(key+f.key, fmt.Sprintf("is %q, which is, or has with its ranks, an endpoint that stands before it", f.endpoint), "one of its own")
				break
			}
			endpoints[one] = true
		}
	}
}
