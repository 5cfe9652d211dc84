package bench

import (
	"context"
	"errors"
	"fmt"
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

// stockPair is one prefill and one decode engine of stock vLLM, and what asks them.
type stockPair struct {
	*stage
	relay   *relay
	sides   [2]string // host:port of the side channels: prefill's, decode's
	handed  map[string]any
	engines []*child
	files   string
	asked   int
}

// openStock starts the engines and the routers in front of them. The pair that is returned is to be closed even with an error.
func (r *Run) openStock(ctx context.Context, connector, python string) (*stockPair, error) {
	cpus, err := allowedCPUs()
	if err != nil {
		return nil, err
	}
	p := &stockPair{stage: &stage{cfg: r.Config, connector: connector, targets: append([]target{gatewayTarget()}, vllmPeers(r.Config, connector)...)}}
	p.running, p.cannot = make([]*child, len(p.targets)), make([]string, len(p.targets))
	if p.files, err = os.MkdirTemp("", "pdrouter-bench-"); err != nil {
		return p, err
	}
	model := filepath.Join(p.files, "model")
	fmt.Fprintf(r.out, "  %s: stock vLLM starts, which takes a minute or some\n", connector)
	if out, err := exec.CommandContext(ctx, python, "internal/e2e/tiny_model.py", model).CombinedOutput(); err != nil {
		return p, fmt.Errorf("bench: the model: %w: %s", err, out)
	}
	if canPin() { // a contest before this one may have bound this process, and engines inherit that
		if err := pinSelf(ctx, listOf(cpus)); err != nil {
			return p, err
		}
	}
	free, err := freeAddresses(4)
	if err != nil {
		return p, err
	}
	start := func(i int) (*child, error) {
		role := [2]string{"kv_producer", "kv_consumer"}[i]
		c, err := stockEngine(ctx, python, model, connector, role, free[2*i], free[2*i+1], cpus[i%len(cpus)])
		if err == nil {
			c.address = free[2*i]
		}
		return c, err
	}
	for i := range p.sides {
		c, err := start(i)
		if err != nil {
			return p, err
		}
		p.engines, p.sides[i] = append(p.engines, c), free[2*i+1]
	}
	for i := range p.engines {
		err := p.engines[i].healthy(ctx, stalled)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			fmt.Fprintf(r.out, "  %s has not come up in %s, and is started again\n", p.engines[i].name, stalled)
			p.engines[i].endGroup()
			c, again := start(i)
			if again != nil {
				return p, errors.Join(err, again)
			}
			p.engines[i] = c
			err = c.healthy(ctx, stalled)
		}
		if err != nil {
			return p, err
		}
	}
	if p.relay, err = openRelay(p.engines[0].address); err != nil {
		return p, err
	}
	p.engines[1].entry = fmt.Sprintf(", side_channel: %q, plain_request_ids: true", p.sides[1])
	p.prefill = []*child{{name: "prefill", address: p.relay.address, entry: fmt.Sprintf(", side_channel: %q", p.sides[0])}}
	p.decode = p.engines[1:]
	p.settings = "timeouts: {request: 240s, prefill: 180s, transfer: 120s, pair: 180s, probe: 180s, ending: 120s}\n"
	return p, p.start(ctx)
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

// stockEngine starts an engine in a process group of its own.
func stockEngine(ctx context.Context, python, model, connector, role, address, side string, cpu int) (*child, error) {
	class := map[string]string{"vllm-nixl-push": "NixlPushConnector", "vllm-nixl-pull": "NixlConnector"}[connector]
	host, port, _ := net.SplitHostPort(address) // as freeAddresses has put it together
	_, sidePort, _ := net.SplitHostPort(side)
	return spawnGroup(ctx, "stock vLLM as "+role, "env",
		"VLLM_TARGET_DEVICE=cpu", "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND="+strconv.Itoa(cpu), "VLLM_NIXL_SIDE_CHANNEL_HOST="+host,
		"VLLM_NIXL_SIDE_CHANNEL_PORT="+sidePort, "TORCHDYNAMO_DISABLE=1", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1",
		"VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1",
		filepath.Join(filepath.Dir(python), "vllm"), "serve", model, "--served-model-name", benchModel, "--host", host, "--port", port, "--dtype", "float32",
		"--max-model-len", "2048", "--max-num-seqs", "16", "--enforce-eager", "--block-size", "32", "--disable-uvicorn-access-log",
		"--kv-transfer-config", fmt.Sprintf(`{"kv_connector":%q,"kv_role":%q,"kv_buffer_device":"cpu"}`, class, role))
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

// healthy waits until the engine answers GET /health.
func (c *child) healthy(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		if err := c.alive(); err != nil {
			return err
		}
		if status, _, err := get(ctx, "http://"+c.address+"/health"); err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("bench: %s is not healthy: %w: %s", c.name, ctx.Err(), c.said)
		case <-time.After(500 * time.Millisecond):
		}
	}
}
