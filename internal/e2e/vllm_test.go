//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// vllm is the installation the test runs, the model it serves and the answers it must give.
type vllm struct {
	venv    string // .deps/vllm
	model   string // a folder
	answers string // a file: what one engine alone answers
	gateway string // the binary under test
	took    *[]string
}

// TestStockVLLM splits requests over a prefill and a decode instance of stock vLLM, pushed and pulled, and compares
// every answer with that of one instance alone. It needs python3, about 10 GB of disk and of memory, and no GPU.
func TestStockVLLM(t *testing.T) {
	v := vllm{venv: filepath.Join(root(t), ".deps", "vllm"), model: filepath.Join(t.TempDir(), "model"), took: new([]string)}
	v.answers = filepath.Join(t.TempDir(), "answers.json")
	t.Cleanup(func() {
		for _, line := range *v.took {
			t.Log(line)
		}
	})

	v.step(t, "install vLLM", func() { runs(t, filepath.Join(root(t), "internal", "deps", "vllm.sh"), v.venv) })
	v.step(t, "build pdrouter", func() { v.gateway = build(t) })
	v.step(t, "make the model", func() { runs(t, v.python(), "tiny_model.py", v.model) })
	if !t.Run("alone", v.record) {
		return
	}
	t.Run("push", func(t *testing.T) {
		v.split(t, pair{connector: "vllm-nixl-push", class: "NixlPushConnector", mover: "prefill"})
	})
	t.Run("pull", func(t *testing.T) {
		v.split(t, pair{connector: "vllm-nixl-pull", class: "NixlConnector", mover: "decode"})
	})
}

// step runs one part of the test and notes how long it took.
func (v *vllm) step(t *testing.T, name string, do func()) {
	t.Helper()
	began := time.Now()
	defer func() {
		line := fmt.Sprintf("%7.1f s  %s: %s", time.Since(began).Seconds(), t.Name(), name)
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
}

// engine starts an instance on the nth CPU this process may use. transfer is its --kv-transfer-config, or empty.
func (v *vllm) engine(t *testing.T, name string, nth int, transfer string) engine {
	t.Helper()
	return v.engineAt(t, name, nth, transfer, freeAddresses(t, 2))
}

// engineAt starts an instance at an address for HTTP and one for its side channel.
func (v *vllm) engineAt(t *testing.T, name string, nth int, transfer string, at []string) engine {
	t.Helper()
	host, port, _ := net.SplitHostPort(at[0])
	_, side, _ := net.SplitHostPort(at[1])
	argv := []string{filepath.Join(v.venv, "bin", "vllm"), "serve", v.model, "--served-model-name", "tiny",
		"--host", host, "--port", port, "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "16",
		"--enforce-eager", "--block-size", "32"}
	if transfer != "" {
		argv = append(argv, "--kv-transfer-config", transfer)
	}
	cpus := allowedCPUs(t)
	p := start(t, name, []string{
		"VLLM_TARGET_DEVICE=cpu", "VLLM_CPU_KVCACHE_SPACE=1", fmt.Sprintf("VLLM_CPU_OMP_THREADS_BIND=%d", cpus[nth%len(cpus)]),
		"VLLM_NIXL_SIDE_CHANNEL_HOST=" + host, "VLLM_NIXL_SIDE_CHANNEL_PORT=" + side,
		"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1", "XDG_CACHE_HOME=" + filepath.Join(t.TempDir(), "cache"),
	}, argv...)
	return engine{p, "http://" + at[0], at[1]}
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

// record asks one aggregated instance every scenario and keeps its answers.
func (v *vllm) record(t *testing.T) {
	var e engine
	v.step(t, "start one instance", func() {
		e = v.engine(t, "alone", 0, "")
		e.ready(t, e.url+"/health", started)
	})
	v.step(t, "record its answers", func() { runs(t, v.python(), "scenarios.py", "record", e.url, v.answers) })
	_ = e.stop(t, time.Minute) // how it ends is its own affair
}

// pair is one way to move the KV between two instances.
type pair struct {
	connector string // pdrouter's name for it
	class     string // vLLM's
	mover     string // the instance that moves the bytes and counts the transfers
}

// split runs the scenarios through the gateway over one prefill and one decode instance, and reads the instances' own
// counters: what moved, what was computed, what was left behind.
func (v *vllm) split(t *testing.T, way pair) {
	var prefill, decode engine
	var front gateway
	v.step(t, "start prefill and decode", func() {
		transfer := `{"kv_connector":%q,"kv_role":%q,"kv_buffer_device":"cpu"}`
		prefill = v.engine(t, "prefill", 0, fmt.Sprintf(transfer, way.class, "kv_producer"))
		decode = v.engine(t, "decode", 1, fmt.Sprintf(transfer, way.class, "kv_consumer"))
		prefill.ready(t, prefill.url+"/health", started)
		decode.ready(t, decode.url+"/health", started)
	})
	v.step(t, "start pdrouter, warm the pair", func() {
		front = serve(t, v.gateway, config{connector: way.connector, prefill: []backend{{url: prefill.url}}, decode: []backend{{url: decode.url, side: decode.side}}})
		front.warmed(t, prefill, decode)
		front.warm(t)
	})
	look := func() state { return state{p: scrape(t, prefill.url), d: scrape(t, decode.url), mover: way.mover} }
	before := rested(t, look)
	var asked report
	v.step(t, "compare split requests", func() { asked = compare(t, front.url, v.python(), v.answers, "split") })
	if got := asked.Reasons["split"]; got != asked.Requests {
		t.Errorf("%d of %d requests were split; reasons: %v", got, asked.Requests, asked.Reasons)
	}
	after := settled(t, look, before, asked.Requests)
	after.check(t, before, asked)

	// The control: what decode computes itself does show in the counter that stayed at zero.
	var unsplit report
	v.step(t, "compare requests for decode alone", func() { unsplit = compare(t, front.url, v.python(), v.answers, "alone") })
	if unsplit.Reasons["split"] != 0 || unsplit.Reasons[""] != 0 {
		t.Errorf("requests one hand-off cannot serve were answered with the reasons %v", unsplit.Reasons)
	}
	last := time.Now()
	control := look()
	if got := control.computed(t) - after.computed(t); got < float64(unsplit.PromptTokens) {
		t.Errorf("decode alone: local_compute rose by %v tokens for prompts of %d; the counter proves nothing", got, unsplit.PromptTokens)
	}
	if got := control.moved(t) - after.moved(t); got != 0 {
		t.Errorf("decode alone: %v transfers; want none", got)
	}

	v.step(t, "wait until 40 s after the last request", func() { time.Sleep(time.Until(last.Add(40 * time.Second))) })
	look().quiet(t)

	if way.mover == "prefill" {
		v.step(t, "kill prefill and start it anew", func() {
			prefill = v.reborn(t, front, prefill, fmt.Sprintf(`{"kv_connector":%q,"kv_role":"kv_producer","kv_buffer_device":"cpu"}`, way.class))
		})
	}

	v.step(t, "stop", func() {
		if err := front.stop(t, time.Minute); err != nil {
			t.Errorf("pdrouter after SIGTERM: %v", err)
		}
		_ = prefill.stop(t, time.Minute)
		_ = decode.stop(t, time.Minute)
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

// state is one reading of both instances' counters.
type state struct {
	p, d  counters
	mover string
}

// scrape reads an instance's metrics.
func scrape(t *testing.T, url string) counters {
	t.Helper()
	body, err := read(t.Context(), url+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	return parseCounters(body)
}

// must is the counter's value; a missing counter fails the test.
func must(t *testing.T, c counters, name string, labels ...string) float64 {
	t.Helper()
	v, found := c.sum(name, labels...)
	if !found {
		t.Fatalf("/metrics has no %s %v", name, labels)
	}
	return v
}

func (s state) computed(t *testing.T) float64 { return s.source(t, "local_compute") }

// source is the number of prompt tokens that decode had from that source.
func (s state) source(t *testing.T, source string) float64 {
	t.Helper()
	return must(t, s.d, "vllm:prompt_tokens_by_source_total", `source="`+source+`"`)
}

// moved is the number of transfers made: writes by prefill or reads by decode.
func (s state) moved(t *testing.T) float64 {
	t.Helper()
	side := s.p
	if s.mover == "decode" {
		side = s.d
	}
	return must(t, side, "vllm:nixl_xfer_time_seconds_count")
}

// finished is the number of requests an instance has brought to an end of its own.
func finished(t *testing.T, c counters) float64 {
	t.Helper()
	return must(t, c, "vllm:request_success_total", `finished_reason="stop"`) + must(t, c, "vllm:request_success_total", `finished_reason="length"`)
}

// rested reads the counters until they stand still and agree, so that no transfer of the warm-up is counted later.
func rested(t *testing.T, look func() state) state {
	t.Helper()
	last := look()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		time.Sleep(2 * time.Second)
		now := look()
		if now.moved(t) > 0 && now.moved(t) == last.moved(t) && finished(t, now.p) == finished(t, last.p) {
			return now
		}
		last = now
	}
	t.Fatal("the pair does not come to rest after its warm-up")
	return last
}

// settled reads the counters until the transfers of n requests are in them, which takes the engine another step or
// two, and returns the last reading whatever it is.
func settled(t *testing.T, look func() state, before state, n int) state {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(500 * time.Millisecond) {
		if s := look(); s.moved(t)-before.moved(t) >= float64(n) || time.Now().After(end) {
			return s
		}
	}
}

// check compares what the counters grew by with what was asked.
func (s state) check(t *testing.T, before state, asked report) {
	t.Helper()
	n := float64(asked.Requests)
	external := s.source(t, "external_kv_transfer") - before.source(t, "external_kv_transfer")
	cached := s.source(t, "local_cache_hit") - before.source(t, "local_cache_hit")
	computed := s.computed(t) - before.computed(t)
	t.Logf("%d requests of %d prompt tokens: decode had %v by external_kv_transfer, %v by local_cache_hit, %v by local_compute; %s counts %v transfers",
		asked.Requests, asked.PromptTokens, external, cached, computed, s.mover, s.moved(t)-before.moved(t))
	// An instance computes at most the last token of a prompt again, to have something to sample from.
	if computed > n {
		t.Errorf("decode computed %v prompt tokens itself; want at most one for each of %v requests", computed, n)
	}
	if got := external + cached + computed; got != float64(asked.PromptTokens) {
		t.Errorf("decode accounts for %v prompt tokens; want %d", got, asked.PromptTokens)
	}
	if external <= cached || external < n {
		t.Errorf("external_kv_transfer rose by %v tokens, local_cache_hit by %v; the prompts did not come from prefill", external, cached)
	}
	for name, got := range map[string]float64{
		"transfers":                    s.moved(t) - before.moved(t),
		"requests finished by prefill": finished(t, s.p) - finished(t, before.p),
		"requests finished by decode":  finished(t, s.d) - finished(t, before.d),
	} {
		if got != n {
			t.Errorf("%s: %v; want one for each of %v requests", name, got, n)
		}
	}
}

// quiet checks that nothing was left behind: no leases ran out, nothing failed, no block is held on either side.
func (s state) quiet(t *testing.T) {
	t.Helper()
	for side, c := range map[string]counters{"prefill": s.p, "decode": s.d} {
		for _, name := range []string{
			"vllm:nixl_num_kv_expired_reqs_total", "vllm:nixl_num_failed_transfers_total", "vllm:nixl_num_failed_notifications_total",
			"vllm:nixl_num_notifications_after_expiry_total", "vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting",
		} {
			if got := must(t, c, name); got != 0 {
				t.Errorf("%s: %s is %v; want 0", side, name, got)
			}
		}
	}
	if t.Failed() {
		telling := []string{"vllm:nixl", "vllm:num_requests", "vllm:request_success", "vllm:prompt_tokens_by_source", "vllm:kv_cache_usage"}
		for side, c := range map[string]counters{"prefill": s.p, "decode": s.d} {
			for _, series := range slices.Sorted(maps.Keys(c)) {
				if c[series] != 0 && !strings.Contains(series, "_bucket") && !strings.Contains(series, "_created") &&
					slices.ContainsFunc(telling, func(name string) bool { return strings.HasPrefix(series, name) }) {
					t.Logf("%s %s %v", side, series, c[series])
				}
			}
		}
	}
}
