package bench

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
)

// The two that are compared, as contenders.
const (
	nixlPush   = "NixlPushConnector"
	nixlByHand = "NixlPushConnector by hand"
)

// vllmPair is one pair of engines of a run, with a gateway in front of it.
type vllmPair struct {
	*stockPair
	of        string
	processes []vllmProcesses // prefill's and decode's, once they are up
	asleep    bool            // its processes are stopped
	sources   tokenSources    // of decode, as last read
	moved     []string        // prompts that decode holds, the last ones behind
}

// newVLLMPair prepares a pair that hands over by pdrouter's connector, or by vLLM's.
func newVLLMPair(cfg Config, of, python, model string) (_ *vllmPair, err error) {
	connector := "vllm-nixl-push"
	if of == us {
		connector = "kvplane"
	}
	p := &vllmPair{of: of}
	if p.stockPair, err = newStockPair(cfg, connector, []target{gatewayTarget()}); err != nil {
		return p, err
	}
	p.engine = vllmEngine{python: python, model: model, transfer: nixlTransfer(connector)}
	if of == us {
		err = p.onPlane()
	}
	return p, err
}

// onPlane has the engines join the plane, by tokens and keys of their own, and the gateway take them in.
func (p *vllmPair) onPlane() error {
	free, err := freeAddresses(3)
	if err != nil {
		return err
	}
	p.agents = free[0]
	control := free[1:]
	engines := []*gatewayEngine{{name: "prefill-0", role: "prefill"}, {name: "decode-0", role: "decode"}}
	tokens, err := writeTokens(p.files, engines)
	if err != nil {
		return err
	}
	signer, err := keys.Generate(keys.EdDSA)
	if err != nil {
		return err
	}
	own, trusted, err := keys.Write(filepath.Join(p.files, "records"), signer)
	if err != nil {
		return err
	}
	p.settings += fmt.Sprintf("auth: {agents: {keys: [%q], issuer: %s}, records: {key_file: %q, trusted: [%q]}, control_token_file: %q}\n",
		tokens, pairIssuer, own, trusted, filepath.Join(p.files, "gateway.token"))
	code, err := filepath.Abs("kvplane/vllm")
	if err != nil {
		return err
	}
	p.engine.env = []string{"PYTHONPATH=" + code, "PYTHONDONTWRITEBYTECODE=1"}
	p.engine.transfer = func(role string) (string, error) {
		i := map[string]int{"kv_producer": 0, "kv_consumer": 1}[role]
		host, _, _ := net.SplitHostPort(control[i]) // as freeAddresses has put it together
		b, err := json.Marshal(map[string]any{
			"kv_connector": "PdrouterConnector", "kv_connector_module_path": "pdrouter_vllm", "kv_role": role, "kv_buffer_device": "cpu",
			"kv_connector_extra_config": map[string]any{
				"engine": engines[i].name, "gateway": "http://" + p.agents, "token_file": filepath.Join(p.files, engines[i].name+".token"),
				"control": control[i], "control_keys": []string{tokens}, "record_keys": []string{trusted}, "issuer": pairIssuer,
				"transport": "tcp", "plane_listen": net.JoinHostPort(host, "0"), "library": planeLibrary(p.cfg),
			},
		})
		return string(b), err
	}
	if err := p.front(); err != nil {
		return err
	}
	for i, e := range []*child{p.prefill[0], p.decode[0]} {
		e.entry = fmt.Sprintf(", control: \"http://%s\"", control[i])
	}
	return nil
}

// planeLibrary is where `make lib` puts the plane's library: beside this program.
func planeLibrary(cfg Config) string { return filepath.Join(filepath.Dir(cfg.Binary), "libpdkv.so") }

// begin starts the engines. Those of the plane look for their gateway when they start, so it is there before them.
func (p *vllmPair) begin(ctx context.Context) error {
	if p.of == us {
		if err := p.behind(ctx); err != nil {
			return err
		}
	}
	return p.stockPair.begin(ctx)
}

// behind starts the gateway.
func (p *vllmPair) behind(ctx context.Context) (err error) {
	p.running[0], err = startGateway(ctx, p.stage)
	return err
}

// up waits until both engines are, and knows their processes then.
func (p *vllmPair) up(ctx context.Context, out io.Writer) error {
	if err := p.stockPair.up(ctx, out); err != nil {
		return err
	}
	for _, c := range p.engines {
		v, err := vllmProcessesOf("/proc", c.cmd.Process.Pid)
		if err != nil {
			return err
		}
		p.processes = append(p.processes, v)
	}
	if p.relay == nil {
		return p.front()
	}
	return nil
}

// ready waits until the gateway has its pair, warm.
func (p *vllmPair) ready(ctx context.Context) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		var s gatewayState
		err := getJSON(ctx, "http://"+p.running[0].operations+"/ready", &s)
		if err == nil && s.PairsWarm == 1 && s.up("prefill-0") && s.up("decode-0") {
			return nil
		}
		gone := errors.Join(ctx.Err(), p.running[0].alive(), p.engines[0].alive(), p.engines[1].alive())
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
	if gateway := p.running[0]; gateway != nil {
		errs = append(errs, gateway.cmd.Process.Signal(s))
	}
	for _, v := range p.processes {
		errs = append(errs, v.signal(s))
	}
	return errors.Join(errs...)
}

func (p *vllmPair) close() {
	_ = p.stop(false) // else nobody of them would hear that it is to end; whoever is gone needs no signal
	p.stockPair.close()
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
func (p *vllmPair) ask(ctx context.Context, prompt string) (got heard, begun time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, vllmAnswers)
	defer cancel()
	p.asked++
	begun = time.Now()
	if p.running[0] == nil {
		got, err = p.byHand(ctx, prompt)
	} else {
		got, err = p.through(ctx, p.running[0].address, prompt, nil)
	}
	return got, begun, err
}

// vllmAnswers bounds a request: within it an engine answers on a busy machine, too.
const vllmAnswers = time.Minute

// alone asks one of the engines (0 is prefill) for the same, without a transfer.
func (p *vllmPair) alone(ctx context.Context, engine int, prompt string) (heard, error) {
	ctx, cancel := context.WithTimeout(ctx, vllmAnswers)
	defer cancel()
	p.asked++
	return p.through(ctx, p.at[engine], prompt, nil)
}

// compute has prefill compute a prompt that nobody takes.
func (p *vllmPair) compute(ctx context.Context, prompt string) error {
	ctx, cancel := context.WithTimeout(ctx, vllmAnswers)
	defer cancel()
	p.asked++
	answer, err := p.post(ctx, p.at[0], prompt, 1, false, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// check voids the run unless the answers to prompts of so many tokens are those that prefill gives by itself, and decode had the prompts
// from it.
func (p *vllmPair) check(ctx context.Context, tokens int, prompts []string, answers []heard) error {
	for i, prompt := range prompts {
		want, err := p.alone(ctx, 0, prompt)
		if err != nil {
			return err
		}
		if want.text != answers[i].text { // both may be empty: not every token is text
			return fmt.Errorf("%w: %s: %.20q… is answered with %q, and by prefill alone with %q", errVoid, p.of, prompt, answers[i].text, want.text)
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
func missingForVLLM(cfg Config) string {
	if _, err := cfg.stockPython(); err != nil {
		return "vLLM is not installed beside the peers; `make e2e-vllm` installs it."
	}
	if _, err := os.Stat(planeLibrary(cfg)); err != nil {
		return "The plane's library is not beside pdrouter; `make lib` builds it."
	}
	return ""
}
