package planevllm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pdrouter/auth/keys"
	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
	"pdrouter/bench/suites/pair"
	"pdrouter/bench/suites/stock"
)

// The two that are compared, as systems.
const (
	nixlPush   = "NixlPushConnector"
	nixlByHand = "NixlPushConnector by hand"
)

// vllmPair is one pair of engines of a run, with a gateway in front of it.
type vllmPair struct {
	*stock.StockPair
	of        string
	processes []vllmProcesses // prefill's and decode's, once they are up
	asleep    bool            // its processes are stopped
	sources   tokenSources    // of decode, as last read
	moved     []string        // prompts that decode holds, the last ones behind
}

// newVLLMPair prepares a pair that hands over by pdrouter's connector, or by vLLM's.
func newVLLMPair(cfg harness.Config, of, python, model string) (_ *vllmPair, err error) {
	connector := "vllm-nixl-push"
	if of == report.Us {
		connector = "kvplane"
	}
	p := &vllmPair{of: of}
	if p.StockPair, err = stock.NewStockPair(cfg, connector, []harness.Target{harness.GatewayTarget()}); err != nil {
		return p, err
	}
	p.Engine = stock.VllmEngine{Python: python, Model: model, Transfer: stock.NixlTransfer(connector)}
	if of == report.Us {
		err = p.onPlane()
	}
	return p, err
}

// onPlane has the engines join the plane, by tokens and keys of their own, and the gateway take them in.
func (p *vllmPair) onPlane() error {
	free, err := harness.FreeAddresses(3)
	if err != nil {
		return err
	}
	p.Agents = free[0]
	control := free[1:]
	engines := []*pair.GatewayEngine{{Name: "prefill-0", Role: "prefill"}, {Name: "decode-0", Role: "decode"}}
	tokens, err := pair.WriteTokens(p.Files, engines)
	if err != nil {
		return err
	}
	signer, err := keys.Generate(keys.EdDSA)
	if err != nil {
		return err
	}
	own, trusted, err := keys.Write(filepath.Join(p.Files, "records"), signer)
	if err != nil {
		return err
	}
	p.Settings += fmt.Sprintf("auth: {agents: {keys: [%q], issuer: %s}, records: {key_file: %q, trusted: [%q]}, control_token_file: %q}\n",
		tokens, pair.PairIssuer, own, trusted, filepath.Join(p.Files, "gateway.token"))
	code, err := filepath.Abs("kvplane/vllm")
	if err != nil {
		return err
	}
	p.Engine.Env = []string{"PYTHONPATH=" + code, "PYTHONDONTWRITEBYTECODE=1"}
	p.Engine.Transfer = func(role string) (string, error) {
		i := map[string]int{"kv_producer": 0, "kv_consumer": 1}[role]
		host, _, _ := net.SplitHostPort(control[i]) // as freeAddresses has put it together
		b, err := json.Marshal(map[string]any{
			"kv_connector": "PdrouterConnector", "kv_connector_module_path": "pdrouter_vllm", "kv_role": role, "kv_buffer_device": "cpu",
			"kv_connector_extra_config": map[string]any{
				"engine": engines[i].Name, "gateway": "http://" + p.Agents, "token_file": filepath.Join(p.Files, engines[i].Name+".token"),
				"control": control[i], "control_keys": []string{tokens}, "record_keys": []string{trusted}, "issuer": pair.PairIssuer,
				"transport": "tcp", "plane_listen": net.JoinHostPort(host, "0"), "library": planeLibrary(p.Cfg),
			},
		})
		return string(b), err
	}
	if err := p.Front(); err != nil {
		return err
	}
	for i, e := range []*harness.Child{p.Prefill[0], p.Decode[0]} {
		e.Entry = fmt.Sprintf(", control: \"http://%s\"", control[i])
	}
	return nil
}

// planeLibrary is where `make lib` puts the plane's library: beside this program.
func planeLibrary(cfg harness.Config) string {
	return filepath.Join(filepath.Dir(cfg.Binary), "libpdkv.so")
}

// begin starts the engines. Those of the plane look for their gateway when they start, so it is there before them.
func (p *vllmPair) begin(ctx context.Context) error {
	if p.of == report.Us {
		if err := p.behind(ctx); err != nil {
			return err
		}
	}
	return p.Begin(ctx)
}

// behind starts the gateway.
func (p *vllmPair) behind(ctx context.Context) (err error) {
	p.Running[0], err = harness.StartGateway(ctx, p.Stage)
	return err
}

// up waits until both engines are, and knows their processes then.
func (p *vllmPair) up(ctx context.Context, out io.Writer) error {
	if err := p.Up(ctx, out); err != nil {
		return err
	}
	for _, c := range p.Engines {
		v, err := vllmProcessesOf("/proc", c.Process.PID())
		if err != nil {
			return err
		}
		p.processes = append(p.processes, v)
	}
	if p.Relay == nil {
		return p.Front()
	}
	return nil
}

// ready waits until the gateway has its pair, warm.
func (p *vllmPair) ready(ctx context.Context) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		var s pair.GatewayState
		err := harness.GetJSON(ctx, "http://"+p.Running[0].Operations+"/ready", &s)
		if err == nil && s.PairsWarm == 1 && s.Up("prefill-0") && s.Up("decode-0") {
			return nil
		}
		gone := errors.Join(ctx.Err(), p.Running[0].Alive(), p.Engines[0].Alive(), p.Engines[1].Alive())
		if gone != nil || time.Now().After(end) {
			return fmt.Errorf("bench: the pair of %s is not warm: %w", p.of, errors.Join(err, gone))
		}
	}
}

// stop stops all processes of the pair, or has them go on: while one pair is measured the other one takes no CPU time, however its
// threads wait.
func (p *vllmPair) stop(asleep bool) error {
	if p.asleep == asleep {
		return nil
	}
	p.asleep = asleep
	s := syscall.SIGCONT
	if asleep {
		s = syscall.SIGSTOP
	}
	var errs []error
	if gateway := p.Running[0]; gateway != nil {
		errs = append(errs, gateway.Process.Cmd.Process.Signal(s))
	}
	for _, v := range p.processes {
		errs = append(errs, v.signal(s))
	}
	return errors.Join(errs...)
}

func (p *vllmPair) close() {
	_ = p.stop(false) // else nobody of them would hear that it is to end; whoever is gone needs no signal
	p.Close()
}

// used is what both engines have used.
func (p *vllmPair) used() (sum vllmUse, err error) {
	for _, v := range p.processes {
		u, err := v.used("/proc")
		if err != nil {
			return sum, err
		}
		sum = sum.plus(u)
	}
	return sum, nil
}

// ask asks for a prompt through the gateway, or by hand where there is none, and returns the answer and when it was asked for.
func (p *vllmPair) ask(ctx context.Context, prompt string) (got stock.Heard, begun time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, vllmAnswers)
	defer cancel()
	p.Asked++
	begun = time.Now()
	if p.Running[0] == nil {
		got, err = p.ByHand(ctx, prompt)
	} else {
		got, err = p.Through(ctx, p.Running[0].Address, prompt, nil)
	}
	return got, begun, err
}

// vllmAnswers bounds a request: within it an engine answers on a busy machine, too.
const vllmAnswers = time.Minute

// alone asks one of the engines (0 is prefill) for the same, without a transfer.
func (p *vllmPair) alone(ctx context.Context, engine int, prompt string) (stock.Heard, error) {
	ctx, cancel := context.WithTimeout(ctx, vllmAnswers)
	defer cancel()
	p.Asked++
	return p.Through(ctx, p.At[engine], prompt, nil)
}

// compute has prefill compute a prompt that nobody takes.
func (p *vllmPair) compute(ctx context.Context, prompt string) error {
	ctx, cancel := context.WithTimeout(ctx, vllmAnswers)
	defer cancel()
	p.Asked++
	answer, err := p.Post(ctx, p.At[0], prompt, 1, false, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// check voids the run unless the answers to prompts of so many tokens are those that prefill gives by itself, and decode had the prompts
// from it.
func (p *vllmPair) check(ctx context.Context, tokens int, prompts []string, answers []stock.Heard) error {
	for i, prompt := range prompts {
		want, err := p.alone(ctx, 0, prompt)
		if err != nil {
			return err
		}
		if want.Text != answers[i].Text { // both may be empty: not every token is text
			return fmt.Errorf("%w: %s: %.20q… is answered with %q, and by prefill alone with %q", load.ErrVoid, p.of, prompt, answers[i].Text, want.Text)
		}
	}
	p.moved = append(p.moved, prompts...)
	return p.account(ctx, func(grew tokenSources) error { return grew.handedOver(len(prompts), tokens) })
}

// vllmPrompt is a prompt of so many tokens, one a byte, that differs from any other one in its first block.
func vllmPrompt(i, tokens int) string {
	head := fmt.Sprintf("%d is asked. ", i)
	return (head + strings.Repeat(fmt.Sprint(i*104729)+" ", tokens/2+1))[:tokens]
}

// missingForVLLM says what is not there to start engines of both connectors, "" if nothing.
func missingForVLLM(cfg harness.Config) string {
	if _, err := stock.StockPython(cfg); err != nil {
		return "vLLM is not installed beside the peers; `make e2e-vllm` installs it."
	}
	if _, err := os.Stat(planeLibrary(cfg)); err != nil {
		return "The plane's library is not beside pdrouter; `make lib` builds it."
	}
	return ""
}
