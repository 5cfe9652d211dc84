//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// vllm is the installation the test runs, the model it serves and the answers it must give.
type vllm struct {
	venv    string   // .deps/vllm
	model   string   // a folder
	answers string   // a file: what one engine alone answers
	chats   []string // what it answers to chats
	gateway string   // the binary under test
	cpus    []int    // that this process may use
	took    *[]string
}

// TestStockVLLM splits requests over a prefill and a decode instance of stock vLLM, pushed and pulled: it compares every
// answer with that of one instance alone, ends requests in every way that leaves KV behind, kills both engines under load,
// and reads the engines' own counters. It needs python3, about 10 GB of disk, 16 GB of memory, and no GPU. N=200 sets how
// many clients leave.
func TestStockVLLM(t *testing.T) {
	v := prepare(t, "full")
	if !t.Run("alone", func(t *testing.T) {
		v.record(t, func(url string) { v.chats = answersTo(t, url, chats()) }, "split", "fan", "alone", "cached", "engine", "stored")
	}) {
		return
	}
	t.Run("push", func(t *testing.T) {
		v.split(t, pair{connector: "vllm-nixl-push", class: "NixlPushConnector", mover: "prefill"})
	})
	t.Run("pull", func(t *testing.T) {
		v.split(t, pair{connector: "vllm-nixl-pull", class: "NixlConnector", mover: "decode"})
	})
}

// prepare installs vLLM, builds the gateway and makes a model of the kind, as tiny_model.py has them. The times of all steps are logged at the test's end.
func prepare(t *testing.T, kind string) *vllm {
	t.Helper()
	v := &vllm{venv: filepath.Join(root(t), ".deps", "vllm"), model: filepath.Join(t.TempDir(), "model"), took: new([]string), cpus: allowedCPUs(t)}
	v.answers = filepath.Join(t.TempDir(), "answers.json")
	began := time.Now()
	t.Cleanup(func() {
		for _, line := range *v.took {
			t.Log(line)
		}
		t.Logf("%7.1f s  in all", time.Since(began).Seconds())
	})
	v.step(t, "install vLLM", func() { runs(t, filepath.Join(root(t), "internal", "deps", "vllm.sh"), v.venv) })
	v.step(t, "build pdrouter", func() { v.gateway = build(t) })
	v.step(t, "make the model", func() { runs(t, v.python(), "tiny_model.py", v.model, kind) })
	return v
}

// step runs one part of the test and notes how long it took.
func (v *vllm) step(t *testing.T, name string, do func()) {
	t.Helper()
	began, failed := time.Now(), t.Failed()
	defer func() {
		line := fmt.Sprintf("%7.1f s  %s: %s", time.Since(began).Seconds(), t.Name(), name)
		if t.Failed() && !failed {
			line += ": FAILED" // .ci/failed looks for it
		}
		*v.took = append(*v.took, line)
		t.Log(line)
	}()
	do()
}

func (v *vllm) python() string { return filepath.Join(v.venv, "bin", "python") }

// engine is one running vLLM instance.
type engine struct {
	*process
	url, side string
	plain     bool // it calls requests as it is told to
}

// role is how an instance is started.
type role struct {
	name     string
	cpu      int      // which of the CPUs this process may use
	transfer string   // --kv-transfer-config, or empty
	random   bool     // it draws names of its own for requests
	tp       int      // tensor-parallel ranks; 0 is 1
	forgets  bool     // it can be told to forget its prefixes
	batch    int      // tokens of one step, so that longer prompts come in chunks; 0 is as vLLM has it
	events   []string // host:port where it publishes KV events, and where it replays them; nil: it does not
	bytes    bool     // it names blocks by 32 bytes, not by integers
	blocks   int      // of its KV cache; 0: as many as fit
	context  int      // tokens of the longest sequence; 0: 2048
}

// engine starts an instance. at are its addresses for HTTP and for its side channel; nil: two that are free.
func (v *vllm) engine(t *testing.T, is role, at []string) engine {
	t.Helper()
	if at == nil {
		at = freeAddresses(t, 2)
	}
	host, port, _ := net.SplitHostPort(at[0])
	_, side, _ := net.SplitHostPort(at[1])
	argv := []string{filepath.Join(v.venv, "bin", "vllm"), "serve", v.model, "--served-model-name", "tiny",
		"--host", host, "--port", port, "--dtype", "float32", "--max-model-len", fmt.Sprint(cmp.Or(is.context, 2048)), "--max-num-seqs", "16",
		"--enforce-eager", "--block-size", "32", "--enable-scale-out", "--enable-prompt-tokens-details",
		"--enable-auto-tool-choice", "--tool-call-parser", "hermes"}
	if is.transfer != "" {
		argv = append(argv, "--kv-transfer-config", is.transfer)
	}
	if is.batch > 0 {
		argv = append(argv, "--max-num-batched-tokens", fmt.Sprint(is.batch))
	}
	if is.blocks > 0 {
		argv = append(argv, "--num-gpu-blocks-override", fmt.Sprint(is.blocks))
	}
	if is.events != nil {
		argv = append(argv, "--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%s","replay_endpoint":"tcp://*:%s"}`, portOf(is.events[0]), portOf(is.events[1])))
	}
	bind := fmt.Sprint(v.cpus[is.cpu%len(v.cpus)])
	if is.tp > 1 {
		argv = append(argv, "--tensor-parallel-size", fmt.Sprint(is.tp))
		for i := 1; i < is.tp; i++ {
			bind += fmt.Sprintf("|%d", v.cpus[(is.cpu+i)%len(v.cpus)])
		}
	}
	env := []string{
		"VLLM_TARGET_DEVICE=cpu", "VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=" + bind,
		"VLLM_NIXL_SIDE_CHANNEL_HOST=" + host, "VLLM_NIXL_SIDE_CHANNEL_PORT=" + side, "VLLM_ENABLE_RESPONSES_API_STORE=1",
		"TORCHDYNAMO_DISABLE=1", // else the first request for logprobs compiles for minutes
		"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "XDG_CACHE_HOME=" + filepath.Join(t.TempDir(), "cache"),
	}
	if !is.random {
		env = append(env, "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1")
	}
	if is.bytes {
		env = append(env, "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0")
	}
	if is.forgets {
		env = append(env, "VLLM_SERVER_DEV_MODE=1")
	}
	return engine{start(t, is.name, env, argv...), "http://" + at[0], at[1], !is.random}
}

// portOf is the port of host:port.
func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// backend is how a gateway's configuration names the engine.
func (e engine) backend() backend { return backend{url: e.url, side: e.side, plain: e.plain} }

// kill ends the engine and its workers at once.
func (e engine) kill() {
	_ = syscall.Kill(-e.cmd.Process.Pid, syscall.SIGKILL)
	<-e.ended
}

// allowedCPUs lists the CPUs this process may run on.
func allowedCPUs(t *testing.T) []int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(status), "Cpus_allowed_list:")
	list, _, _ = strings.Cut(list, "\n")
	var cpus []int
	for _, span := range strings.Split(strings.TrimSpace(list), ",") {
		var first, last int
		if n, _ := fmt.Sscanf(span, "%d-%d", &first, &last); n == 1 {
			last = first
		} else if n == 0 {
			t.Fatalf("/proc/self/status: Cpus_allowed_list is %q", list)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// started bounds an instance's start: half a minute on an idle machine, several on a busy one whose files are cold.
const started = 8 * time.Minute

// slow bounds what takes seconds, and minutes on a machine that is busy with something else.
const slow = 2 * time.Minute

// up waits until the engine is ready.
func (e engine) up(t *testing.T) {
	t.Helper()
	e.ready(t, e.url+"/health", started)
	e.unpin(t)
	e.lowerSpinning(t)
}

// record asks one aggregated instance every scenario of the kinds and keeps its answers. more asks what else is to be known of it.
func (v *vllm) record(t *testing.T, more func(url string), kinds ...string) {
	var e engine
	v.step(t, "start one instance", func() {
		e = v.engine(t, role{name: "alone"}, nil)
		e.up(t)
	})
	v.step(t, "record its answers", func() {
		runs(t, append([]string{v.python(), "scenarios.py", "record", e.url, v.answers}, kinds...)...)
		if more != nil {
			more(e.url)
		}
	})
	_ = e.stop(t, time.Minute) // how it ends is its own affair
}

// pair is one way to move the KV between two instances.
type pair struct {
	connector string // pdrouter's name for it
	class     string // vLLM's
	mover     string // the instance that moves the bytes and counts the transfers
}

// transfer is the --kv-transfer-config of an instance that is a kv_producer or a kv_consumer.
func (w pair) transfer(role string) string {
	return fmt.Sprintf(`{"kv_connector":%q,"kv_role":%q,"kv_buffer_device":"cpu"}`, w.class, role)
}

// learn has pdrouter ask the engines what they are, and waits until they have given up the KV of its questions.
func (v *vllm) learn(t *testing.T, way pair, prefill, decode engine) {
	out, err := exec.CommandContext(t.Context(), v.gateway, "serve", "--prefill", prefill.url, "--decode", decode.url, "--print-config").Output()
	if err != nil {
		t.Fatalf("serve --print-config: %v\n%s", err, out)
	}
	file := filepath.Join(t.TempDir(), "learned.yaml")
	if err := os.WriteFile(file, out, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name: tiny", "connector: " + way.connector, "side_channel: " + prefill.side, "side_channel: " + decode.side} {
		if !strings.Contains(string(out), want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
	if got := strings.Contains(string(out), "request_id_randomization_disabled: true"); got != decode.plain {
		t.Errorf("request_id_randomization_disabled is %v in\n%s; want %v", got, out, decode.plain)
	}
	said, err := exec.CommandContext(t.Context(), v.gateway, "validate", "--probe", file).CombinedOutput()
	if err != nil || !strings.Contains(string(said), "every engine answers and fits") {
		t.Errorf("validate --probe: %v\n%s", err, said)
	}
	until(t, slow, "the engines have given up the KV of the questions", func() bool { return unused(t, prefill) && unused(t, decode) })
}

// split runs the scenarios through the gateway over one prefill and one decode instance, and reads the instances' own
// counters: what moved, what was computed, what was left behind. Then clients leave, and engines die.
func (v *vllm) split(t *testing.T, way pair) {
	var prefill, decode engine
	var front gateway
	v.step(t, "start prefill and decode", func() {
		prefill = v.engine(t, role{name: "prefill", cpu: 0, transfer: way.transfer("kv_producer")}, nil)
		decode = v.engine(t, role{name: "decode", cpu: 1, transfer: way.transfer("kv_consumer")}, nil)
		prefill.up(t)
		decode.up(t)
	})
	v.step(t, "start pdrouter, warm the pair", func() {
		front = serve(t, v.gateway, config{connector: way.connector, prefill: []backend{prefill.backend()}, decode: []backend{decode.backend()},
			more: "limits: {retry_floor: 16}\n"}) // eight requests lose their prefill engine at once
		front.warmed(t, prefill, decode)
		front.warm(t)
	})
	look := func() state { return state{p: scrape(t, prefill.url), d: scrape(t, decode.url), mover: way.mover} }
	var before state
	var asked report
	v.step(t, "compare split requests", func() { asked, before = front.compared(t, look, v.python(), v.answers, "split") })
	after := settled(t, look, before, asked.HandOffs)
	after.check(t, before, asked)

	v.step(t, "compare requests for several choices", func() { asked, before = front.compared(t, look, v.python(), v.answers, "fan") })
	settled(t, look, before, asked.HandOffs).each(t, before, asked)

	// The control: what decode computes itself does show in the counter that stayed at zero.
	before = look()
	v.step(t, "compare requests for decode alone", func() { asked = compare(t, front.url, v.python(), v.answers, "alone") })
	after = look()
	if got := after.computed(t) - before.computed(t); got < float64(asked.Requests) {
		t.Errorf("decode alone: local_compute rose by %v tokens for %d requests; the counter proves nothing", got, asked.Requests)
	}
	if got := after.moved(t) - before.moved(t); got != 0 {
		t.Errorf("decode alone: %v transfers; want none", got)
	}

	v.step(t, "compare what only engines do", func() { compare(t, front.url, v.python(), v.answers, "cached", "engine", "stored") })
	until(t, slow, "no block is held", func() bool { return unused(t, prefill) && unused(t, decode) })

	if way.mover == "decode" {
		v.step(t, "decode is sent the prompt's token ids", func() { v.tokens(t, way, prefill, decode, v.chats) })
		until(t, slow, "no block is held", func() bool { return unused(t, prefill) && unused(t, decode) })
	}

	var l *load
	var left int
	v.step(t, "clients that leave", func() {
		l = newLoad(t, prefill.url)
		left = front.leaves(t, l, prefill, decode)
	})
	last := time.Now()
	v.step(t, "wait until 35 s after the last request", func() { time.Sleep(time.Until(last.Add(35 * time.Second))) })
	look().quiet(t, left, front.told(t))
	if way.mover == "prefill" {
		v.step(t, "the control: requests that are told too early", func() { control(t, prefill, decode) })
		front.warm(t)
		v.step(t, "decode stalls for longer than the lease of prefill", func() { front.stalls(t, l, decode, prefill, decode) })
		v.step(t, "prefill stalls for as long", func() { front.stalls(t, l, prefill, prefill, decode) })
	}
	v.step(t, "ask the engines what they are", func() { v.learn(t, way, prefill, decode) })
	v.deaths(t, way, front, l, prefill, decode)
	v.step(t, "stop", func() {
		if err := front.stop(t, time.Minute); err != nil {
			t.Errorf("pdrouter after SIGTERM: %v", err)
		}
	})
}

// warm asks until a request has been split over the pair: the first use of a pair costs its handshakes, and an engine
// that has just started is slow.
func (g gateway) warm(t *testing.T) {
	t.Helper()
	last := "no answer"
	for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		body := []byte(`{"model":"tiny","prompt":"a first request, to warm the pair","max_tokens":2,"temperature":0}`)
		a, err := http.Post(g.url+"/v1/completions", "application/json", bytes.NewReader(body))
		if err != nil {
			last = err.Error()
			continue
		}
		said, _ := io.ReadAll(a.Body)
		a.Body.Close()
		reason := a.Header.Get("x-pdrouter-reason")
		if a.StatusCode == http.StatusOK && reason == "split" {
			return
		}
		last = fmt.Sprintf("status %d, reason %q: %s", a.StatusCode, reason, said)
	}
	t.Fatalf("pdrouter splits no request: %s", last)
}
