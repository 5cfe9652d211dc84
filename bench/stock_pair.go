package bench

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
	"strconv"
	"sync"
	"syscall"
	"time"
)

// stockPair is one prefill and one decode engine of vLLM on its CPU backend, and what asks them.
type stockPair struct {
	*stage
	engine  vllmEngine
	relay   *relay
	at      [2]string // host:port of their routes: prefill's, decode's
	sides   [2]string // of their side channels
	handed  map[string]any
	engines []*child
	files   string
	asked   int
}

// vllmEngine is what a pair's engines are started with.
type vllmEngine struct {
	python   string // of the installation
	model    string // a folder
	transfer func(role string) (config string, err error)
	env      []string // more of the environment
}

// nixlTransfer is vLLM's own connector for a pdrouter connector.
func nixlTransfer(connector string) func(role string) (string, error) {
	class := map[string]string{"vllm-nixl-push": "NixlPushConnector", "vllm-nixl-pull": "NixlConnector"}[connector]
	return func(role string) (string, error) {
		return fmt.Sprintf(`{"kv_connector":%q,"kv_role":%q,"kv_buffer_device":"cpu"}`, class, role), nil
	}
}

// stockPython is the Python of the vLLM that is installed beside the peers.
func (c Config) stockPython() (string, error) {
	python := filepath.Join(filepath.Dir(c.Peers), "vllm", "bin", "python")
	_, err := os.Stat(python)
	return python, err
}

// makeModel makes the model that the engines serve.
func makeModel(ctx context.Context, python, model string) error {
	if out, err := exec.CommandContext(ctx, python, "internal/e2e/tiny_model.py", model).CombinedOutput(); err != nil {
		return fmt.Errorf("bench: the model: %w: %s", err, out)
	}
	return nil
}

// openStock starts the engines and the routers in front of them. The pair that is returned is to be closed even with an error.
func (r *Run) openStock(ctx context.Context, connector, python string) (*stockPair, error) {
	p, err := newStockPair(r.Config, connector, append([]target{gatewayTarget()}, vllmPeers(r.Config, connector)...))
	if err != nil {
		return p, err
	}
	p.engine = vllmEngine{python: python, model: filepath.Join(p.files, "model"), transfer: nixlTransfer(connector)}
	fmt.Fprintf(r.out, "  %s: stock vLLM starts, which takes a minute or some\n", connector)
	if err := makeModel(ctx, python, p.engine.model); err != nil {
		return p, err
	}
	if err := p.begin(ctx); err != nil {
		return p, err
	}
	if err := p.up(ctx, r.out); err != nil {
		return p, err
	}
	if err := p.front(); err != nil {
		return p, err
	}
	return p, p.start(ctx)
}

// newStockPair has addresses and a folder for a pair; nothing of it runs yet.
func newStockPair(cfg Config, connector string, targets []target) (*stockPair, error) {
	p := &stockPair{stage: &stage{cfg: cfg, connector: connector, targets: targets}}
	p.running, p.cannot = make([]*child, len(targets)), make([]string, len(targets))
	p.settings = "timeouts: {request: 240s, prefill: 180s, transfer: 120s, pair: 180s, probe: 180s, cleanup: 120s}\n"
	free, err := freeAddresses(4)
	if err != nil {
		return p, err
	}
	p.at, p.sides = [2]string(free[:2]), [2]string(free[2:])
	p.files, err = os.MkdirTemp("", "pdrouter-bench-")
	return p, err
}

// begin starts both engines.
func (p *stockPair) begin(ctx context.Context) error {
	cpus, err := allowedCPUs()
	if err != nil {
		return err
	}
	if canPin() { // a contest before this one may have bound this process, and engines inherit that
		if err := pinSelf(ctx, listOf(cpus)); err != nil {
			return err
		}
	}
	for i := range p.at {
		c, err := p.startEngine(ctx, i, cpus)
		if err != nil {
			return err
		}
		p.engines = append(p.engines, c)
	}
	return nil
}

// up waits until both engines are. One that does not come up is started again, once.
func (p *stockPair) up(ctx context.Context, out io.Writer) error {
	for i := range p.engines {
		err := p.engines[i].healthy(ctx, stalled, 500*time.Millisecond)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			fmt.Fprintf(out, "  %s has not come up in %s, and is started again\n", p.engines[i].name, stalled)
			p.engines[i].endGroup()
			cpus, again := allowedCPUs()
			if again != nil {
				return errors.Join(err, again)
			}
			c, again := p.startEngine(ctx, i, cpus)
			if again != nil {
				return errors.Join(err, again)
			}
			p.engines[i] = c
			err = c.healthy(ctx, stalled, 500*time.Millisecond)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// front puts the relay in front of prefill, and says how a gateway finds both engines.
func (p *stockPair) front() (err error) {
	if p.relay, err = openRelay(p.at[0]); err != nil {
		return err
	}
	p.prefill = []*child{{name: "prefill", address: p.relay.address, entry: fmt.Sprintf(", side_channel: %q", p.sides[0])}}
	p.decode = []*child{{name: "decode", address: p.at[1], entry: fmt.Sprintf(", side_channel: %q, request_id_randomization_disabled: true", p.sides[1])}}
	return nil
}

func (p *stockPair) close() {
	for _, c := range p.running {
		if c != nil {
			c.stop()
		}
	}
	if p.relay != nil {
		p.relay.close()
	}
	var group sync.WaitGroup
	for _, c := range p.engines {
		group.Go(c.endGroup)
	}
	group.Wait()
	_ = os.RemoveAll(p.files) // in the temporary folder: nobody misses it
}

// startEngine starts prefill (0) or decode (1) on a CPU of its own, in a process group of its own.
func (p *stockPair) startEngine(ctx context.Context, i int, cpus []int) (*child, error) {
	role := [2]string{"kv_producer", "kv_consumer"}[i]
	transfer, err := p.engine.transfer(role)
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(p.at[i]) // as freeAddresses has put it together
	_, side, _ := net.SplitHostPort(p.sides[i])
	argv := append([]string{"env",
		"VLLM_TARGET_DEVICE=cpu", "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=" + strconv.Itoa(cpus[i%len(cpus)]), "VLLM_NIXL_SIDE_CHANNEL_HOST=" + host,
		"VLLM_NIXL_SIDE_CHANNEL_PORT=" + side, "TORCHDYNAMO_DISABLE=1", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1",
		"VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1"}, p.engine.env...)
	argv = append(argv, filepath.Join(filepath.Dir(p.engine.python), "vllm"), "serve", p.engine.model, "--served-model-name", benchModel,
		"--host", host, "--port", port, "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "16", "--enforce-eager", "--block-size", "32",
		"--disable-uvicorn-access-log", "--kv-transfer-config", transfer)
	c, err := spawnGroup(ctx, "vLLM as "+role, argv...)
	if err == nil {
		c.address = p.at[i]
	}
	return c, err
}

// stalled is how long an engine that starts may take before it is started again, as whoever runs engines would: on a busy machine
// it takes two minutes, and one start in some dozens never ends.
const stalled = 5 * time.Minute

// guarded runs a command in the shell's process group, which is killed when the other end of the shell's standard input is closed:
// by whoever started it, or by the kernel when that one has died, however it did.
const guarded = `trap : TERM; exec 3<&0 </dev/null; (read -r _ <&3; kill -9 0) & exec 3<&-; "$@"`

// spawnGroup starts a process that starts others, in a group of its own that ends with ctx and with this process.
func spawnGroup(ctx context.Context, name string, argv ...string) (*child, error) {
	c := &child{name: name, said: &lastBytes{keep: 4096}, ended: make(chan struct{})}
	c.cmd = exec.CommandContext(ctx, "sh", append([]string{"-c", guarded, "sh"}, argv...)...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.cmd.Cancel = func() error { return syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) }
	c.cmd.Stdout, c.cmd.Stderr = c.said, c.said
	c.cmd.WaitDelay = 10 * time.Second           // whoever it has started may hold its output
	if _, err := c.cmd.StdinPipe(); err != nil { // closed behind its end, so that nobody of the group outlives it
		return nil, fmt.Errorf("bench: %s: %w", name, err)
	}
	return c, c.begin()
}

// endGroup asks everybody in the group of a process to end, and ends whoever has not in time.
func (c *child) endGroup() {
	group := -c.cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(15 * time.Second):
	}
	_ = syscall.Kill(group, syscall.SIGKILL)
	<-c.ended
}

// healthy waits until the engine answers GET /health, which it is asked every so often.
func (c *child) healthy(ctx context.Context, within, every time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		if err := c.alive(); err != nil {
			return err
		}
		if status, _, err := get(ctx, "http://"+c.address+"/health"); err == nil && status == http.StatusOK {
			return nil
		}
		if err := pause(ctx, every); err != nil {
			return fmt.Errorf("bench: %s is not healthy: %w: %s", c.name, err, c.said)
		}
	}
}
