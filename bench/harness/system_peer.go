package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pdrouter/bench/fake"
)

// peerRouter is another project's router, unpacked into a folder of the peers and started with its own flags. Its threads are as
// many as the CPUs that it is bound to: one.
type peerRouter struct {
	of, version string
	folder      string // in the folder of the peers
	module      string // of Python: its flags are read by MODULE.router_args, and MODULE.router runs it
	connectors  []string
	flags       func(s *Stage) []string
	register    func(ctx context.Context, s *Stage, address string) error // tells it of its engines; nil if its flags do
}

// PeerTargets are the routers of other projects.
func PeerTargets() []Target {
	var all []Target
	for _, p := range []peerRouter{
		{
			of: "vllm-router", version: "0.1.17", folder: "vllm-router", module: "vllm_router", connectors: []string{"vllm-nixl-pull", "vllm-nixl-push"},
			flags: func(s *Stage) []string {
				return slices.Concat([]string{"--vllm-pd-disaggregation", "--kv-connector", "nixl", "--worker-startup-check-interval", "1"},
					each("--prefill", s.Prefill), each("--decode", s.Decode))
			},
		},
		{
			of: "smg", version: "1.13.0", folder: "smg", module: "smg", connectors: []string{"vllm-nixl-pull", fake.SGLang},
			flags: func(s *Stage) []string {
				if s.Connector == fake.SGLang {
					return slices.Concat([]string{"--pd-disaggregation", "--backend", "sglang"}, each("--prefill", s.Prefill, "8998"), each("--decode", s.Decode))
				}
				return []string{"--pd-disaggregation", "--backend", "vllm"}
			},
			register: registerWorkers,
		},
		{
			of: "sglang-router", version: "0.3.2", folder: "../sglang-router", module: "sglang_router", connectors: []string{fake.SGLang},
			flags: func(s *Stage) []string {
				return slices.Concat([]string{"--pd-disaggregation", "--worker-startup-check-interval", "1"},
					each("--prefill", s.Prefill, "8998"), each("--decode", s.Decode))
			},
		},
	} {
		all = append(all, p.target())
	}
	return all
}

// VllmPeers are those that stand in front of vLLM with one connector or another.
func VllmPeers(cfg Config, connector string) []Target {
	return slices.DeleteFunc(PeerTargets(), func(x Target) bool { return x.Cannot(cfg, connector) == "measured with "+fake.SGLang })
}

// each is a flag with each engine's URL and what follows it.
func each(flag string, engines []*Child, more ...string) []string {
	var flags []string
	for _, e := range engines {
		flags = append(append(flags, flag, "http://"+e.Address), more...)
	}
	return flags
}

func (p peerRouter) target() Target {
	return Target{Of: p.of, Peer: true, Legs: 2, Start: p.start,
		version: func() string { return p.of + " " + p.version },
		Cannot: func(cfg Config, connector string) string {
			if !slices.Contains(p.connectors, connector) {
				return "measured with " + strings.Join(p.connectors, " and ")
			}
			if _, err := os.Stat(filepath.Join(cfg.Peers, p.folder, p.module)); err != nil {
				return "not installed; make peers installs it"
			}
			if _, err := exec.LookPath("python3"); err != nil {
				return "no python3"
			}
			return ""
		},
	}
}

// launch runs a router with the flags of its own command line. Their launchers need packages that serve modes which are not
// used here.
const launch = `import argparse, importlib, sys
module = sys.argv[1]
args = importlib.import_module(module + ".router_args").RouterArgs
parser = argparse.ArgumentParser()
args.add_cli_args(parser, use_router_prefix=False)
args = args.from_cli_args(parser.parse_args(sys.argv[2:]), use_router_prefix=False)
importlib.import_module(module + ".router").Router.from_args(args).start()
`

func (p peerRouter) start(ctx context.Context, s *Stage) (*Child, error) {
	free, err := FreeAddresses(2)
	if err != nil {
		return nil, err
	}
	library, err := filepath.Abs(filepath.Join(s.Cfg.Peers, p.folder))
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(free[0]) // as freeAddresses has put it together
	_, metrics, _ := net.SplitHostPort(free[1])
	argv := slices.Concat([]string{"env", "PYTHONPATH=" + library, "HF_HUB_OFFLINE=1", "python3", "-c", launch, p.module, "--host", host, "--port", port}, p.flags(s),
		[]string{"--policy", "round_robin", "--prometheus-host", host, "--prometheus-port", metrics, "--log-level", "error"})
	c, err := Spawn(ctx, p.of, s.Place.Target, false, false, argv...)
	if err != nil {
		return nil, err
	}
	c.Address, c.abrupt = free[0], true
	if p.register != nil {
		if err := p.register(ctx, s, c.Address); err != nil {
			err = errors.Join(err, c.Alive())
			c.Stop()
			return nil, err
		}
	}
	return c, nil
}

// registerWorkers tells smg of vLLM's engines as soon as it listens: its flags do not name a connector.
func registerWorkers(ctx context.Context, s *Stage, address string) error {
	if s.Connector == fake.SGLang {
		return nil
	}
	for role, engines := range map[string][]*Child{"prefill": s.Prefill, "decode": s.Decode} {
		kv := map[string]string{"prefill": "kv_producer", "decode": "kv_consumer"}[role]
		for _, e := range engines {
			body := fmt.Sprintf(`{"url":"http://%s","worker_type":%q,"runtime":"vllm","kv_connector":"NixlConnector","kv_role":%q}`, e.Address, role, kv)
			if err := postUntil(ctx, "http://"+address+"/workers", body, time.Now().Add(20*time.Second)); err != nil {
				return err
			}
		}
	}
	return nil
}

// postUntil posts a body again and again until it is accepted.
func postUntil(ctx context.Context, url, body string, end time.Time) error {
	for {
		answer, err := http.Post(url, "application/json", strings.NewReader(body))
		if err == nil {
			said, _ := io.ReadAll(io.LimitReader(answer.Body, 300))
			answer.Body.Close()
			if answer.StatusCode/100 == 2 {
				return nil
			}
			err = fmt.Errorf("status %d: %s", answer.StatusCode, said)
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return errors.Join(ctx.Err(), err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
