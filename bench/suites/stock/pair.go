package stock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"pdrouter/bench/fake"
	"pdrouter/bench/harness"
	"pdrouter/bench/report"
)

// StockPair is one prefill and one decode engine of vLLM on its CPU backend, and what asks them.
type StockPair struct {
	*harness.Stage
	Engine  VllmEngine
	Relay   *relay
	At      [2]string // host:port of their routes: prefill's, decode's
	sides   [2]string // of their side channels
	handed  map[string]any
	Engines []*harness.Child
	Files   string
	Asked   int
}

// VllmEngine is what a pair's engines are started with.
type VllmEngine struct {
	Python   string // of the installation
	Model    string // a folder
	Transfer func(role string) (config string, err error)
	Env      []string // more of the environment
}

// NixlTransfer is vLLM's own connector for a pdrouter connector.
func NixlTransfer(connector string) func(role string) (string, error) {
	class := map[string]string{"vllm-nixl-push": "NixlPushConnector", "vllm-nixl-pull": "NixlConnector"}[connector]
	return func(role string) (string, error) {
		return fmt.Sprintf(`{"kv_connector":%q,"kv_role":%q,"kv_buffer_device":"cpu"}`, class, role), nil
	}
}

// StockPython is the Python of the vLLM that is installed beside the peers.
func StockPython(c harness.Config) (string, error) {
	python := filepath.Join(filepath.Dir(c.Peers), "vllm", "bin", "python")
	_, err := os.Stat(python)
	return python, err
}

// MakeModel makes the model that the engines serve.
func MakeModel(ctx context.Context, python, model string) error {
	if out, err := exec.CommandContext(ctx, python, "internal/e2e/tiny_model.py", model).CombinedOutput(); err != nil {
		return fmt.Errorf("bench: the model: %w: %s", err, out)
	}
	return nil
}

// openStock starts the engines and the routers in front of them. The pair that is returned is to be closed even with an error.
func openStock(ctx context.Context, r *harness.Run, connector, python string) (*StockPair, error) {
	p, err := NewStockPair(r.Config, connector, append([]harness.Target{harness.GatewayTarget()}, harness.VllmPeers(r.Config, connector)...))
	if err != nil {
		return p, err
	}
	p.Engine = VllmEngine{Python: python, Model: filepath.Join(p.Files, "model"), Transfer: NixlTransfer(connector)}
	fmt.Fprintf(r.Out, "  %s: stock vLLM starts, which takes a minute or some\n", connector)
	if err := MakeModel(ctx, python, p.Engine.Model); err != nil {
		return p, err
	}
	if err := p.Begin(ctx); err != nil {
		return p, err
	}
	if err := p.Up(ctx, r.Out); err != nil {
		return p, err
	}
	if err := p.Front(); err != nil {
		return p, err
	}
	return p, p.Start(ctx)
}

// NewStockPair has addresses and a folder for a pair; nothing of it runs yet.
func NewStockPair(cfg harness.Config, connector string, targets []harness.Target) (*StockPair, error) {
	p := &StockPair{Stage: &harness.Stage{Cfg: cfg, Connector: connector, Targets: targets}}
	p.Running, p.Cannot = make([]*harness.Child, len(targets)), make([]string, len(targets))
	p.Settings = "timeouts: {request: 240s, prefill: 180s, transfer: 120s, pair: 180s, probe: 180s, cleanup: 120s}\n"
	free, err := harness.FreeAddresses(4)
	if err != nil {
		return p, err
	}
	p.At, p.sides = [2]string(free[:2]), [2]string(free[2:])
	p.Files, err = os.MkdirTemp("", "pdrouter-bench-")
	return p, err
}

// Begin starts both engines.
func (p *StockPair) Begin(ctx context.Context) error {
	cpus, err := report.AllowedCPUs()
	if err != nil {
		return err
	}
	if harness.CanPin() { // a comparison before this one may have bound this process, and engines inherit that
		if err := harness.PinSelf(ctx, harness.ListOf(cpus)); err != nil {
			return err
		}
	}
	for i := range p.At {
		c, err := p.startEngine(ctx, i, cpus)
		if err != nil {
			return err
		}
		p.Engines = append(p.Engines, c)
	}
	return nil
}

// Up waits until both engines are. One that does not come up is started again, once.
func (p *StockPair) Up(ctx context.Context, out io.Writer) error {
	for i := range p.Engines {
		err := p.Engines[i].Healthy(ctx, stalled, 500*time.Millisecond)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			fmt.Fprintf(out, "  %s has not come up in %s, and is started again\n", p.Engines[i].Name, stalled)
			p.Engines[i].EndGroup()
			cpus, again := report.AllowedCPUs()
			if again != nil {
				return errors.Join(err, again)
			}
			c, again := p.startEngine(ctx, i, cpus)
			if again != nil {
				return errors.Join(err, again)
			}
			p.Engines[i] = c
			err = c.Healthy(ctx, stalled, 500*time.Millisecond)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Front puts the relay in front of prefill, and says how a gateway finds both engines.
func (p *StockPair) Front() (err error) {
	if p.Relay, err = openRelay(p.At[0]); err != nil {
		return err
	}
	p.Prefill = []*harness.Child{{Name: "prefill", Address: p.Relay.address, Entry: fmt.Sprintf(", side_channel: %q", p.sides[0])}}
	p.Decode = []*harness.Child{{Name: "decode", Address: p.At[1], Entry: fmt.Sprintf(", side_channel: %q, request_id_randomization_disabled: true", p.sides[1])}}
	return nil
}

func (p *StockPair) Close() {
	for _, c := range p.Running {
		if c != nil {
			c.Stop()
		}
	}
	if p.Relay != nil {
		p.Relay.close()
	}
	var group sync.WaitGroup
	for _, c := range p.Engines {
		group.Go(c.EndGroup)
	}
	group.Wait()
	_ = os.RemoveAll(p.Files) // in the temporary folder: nobody misses it
}

// startEngine starts prefill (0) or decode (1) on a CPU of its own, in a process group of its own.
func (p *StockPair) startEngine(ctx context.Context, i int, cpus []int) (*harness.Child, error) {
	role := [2]string{"kv_producer", "kv_consumer"}[i]
	transfer, err := p.Engine.Transfer(role)
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(p.At[i]) // as freeAddresses has put it together
	_, side, _ := net.SplitHostPort(p.sides[i])
	argv := append([]string{"env",
		"VLLM_TARGET_DEVICE=cpu", "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=" + strconv.Itoa(cpus[i%len(cpus)]), "VLLM_NIXL_SIDE_CHANNEL_HOST=" + host,
		"VLLM_NIXL_SIDE_CHANNEL_PORT=" + side, "TORCHDYNAMO_DISABLE=1", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1",
		"VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1"}, p.Engine.Env...)
	argv = append(argv, filepath.Join(filepath.Dir(p.Engine.Python), "vllm"), "serve", p.Engine.Model, "--served-model-name", fake.Model,
		"--host", host, "--port", port, "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "16", "--enforce-eager", "--block-size", "32",
		"--disable-uvicorn-access-log", "--kv-transfer-config", transfer)
	c, err := harness.SpawnGroup(ctx, "vLLM as "+role, argv...)
	if err == nil {
		c.Address = p.At[i]
	}
	return c, err
}

// stalled is how long an engine that starts may take before it is started again, as whoever runs engines would: on a busy machine
// it takes two minutes, and one start in some dozens never ends.
const stalled = 5 * time.Minute
