//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// plane is a gateway with connector kvplane and vLLM engines that join it by pdrouter's own connector, from its wheel.
type plane struct {
	*vllm
	dir    string // keys, tokens
	agents string // the gateway's listener for engines
	front  gateway
}

// member is an engine of the plane, and where it is found again when it is started anew.
type member struct {
	engine
	name, role, control string
	at                  []string
	tp, cpu             int
}

// TestVLLMPlane splits requests over vLLM engines that hand their KV over by pdrouter's plane: it compares every answer with that of
// one instance alone, ends requests in every way that leaves KV behind, kills engines under load, and reads the engines' own counters.
// It needs what TestStockVLLM needs. N=200 sets how many clients leave.
func TestVLLMPlane(t *testing.T) {
	v := vllm{venv: filepath.Join(root(t), ".deps", "vllm"), model: filepath.Join(t.TempDir(), "model"), took: new([]string), cpus: allowedCPUs(t)}
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
	v.step(t, "make the wheel and install it", func() { v.wheel(t) })
	v.step(t, "make the model", func() { runs(t, v.python(), "tiny_model.py", v.model) })
	if !t.Run("alone", v.record) {
		return
	}
	t.Run("1P1D", func(t *testing.T) {
		p, prefill, decode := v.pair(t, 1, 1, 1)
		p.compare(t, prefill, decode)
		l := newLoad(t, prefill[0].url)
		v.step(t, "clients that leave", func() { p.leaves(t, l, prefill[0], decode[0]) })
		v.step(t, "prefill killed while decode waits, and started again", func() { p.prefillDies(t, l, &prefill[0], decode[0]) })
		v.step(t, "decode killed in the middle of a stream", func() {
			decodeDies(t, decode[0].engine, begin(t, p.front.url, story(t, decode[0].url)))
			until(t, 20*time.Second, "prefill's blocks are free", func() bool { return unused(t, prefill[0].engine) })
		})
	})
	t.Run("prefill TP 2, decode TP 1", func(t *testing.T) {
		p, prefill, decode := v.pair(t, 1, 2, 1)
		p.compare(t, prefill, decode)
	})
}

// wheel builds the wheel, installs it without a network, and has engines find it.
func (v *vllm) wheel(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("make", "-s", "-C", root(t), "wheel", "WHEELS="+dir, "PYTHON="+v.python())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make wheel: %v\n%s", err, out)
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("wheels %v, %v; want one", wheels, err)
	}
	installed := filepath.Join(dir, "installed")
	runs(t, filepath.Join(v.venv, "bin", "pip"), "install", "--quiet", "--no-index", "--no-deps", "--target", installed, wheels[0])
	t.Setenv("PYTHONPATH", installed)
}

// pair starts a gateway, p prefill engines of tp ranks and d decode engines of one, and waits until every pair has shaken hands.
func (v *vllm) pair(t *testing.T, p, tp, d int) (*plane, []member, []member) {
	t.Helper()
	w := &plane{vllm: v, dir: t.TempDir(), agents: freeAddresses(t, 1)[0]}
	var prefill, decode []member
	v.step(t, "start the gateway and the engines", func() {
		control := freeAddresses(t, p+d)
		c := config{connector: "kvplane", agents: w.agents}
		for i := range p {
			prefill = append(prefill, member{name: fmt.Sprintf("prefill-%d", i), role: "prefill", control: control[i], at: freeAddresses(t, 2), tp: tp, cpu: i})
			c.prefill = append(c.prefill, backend{url: "http://" + prefill[i].at[0], control: "http://" + control[i]})
		}
		for i := range d {
			decode = append(decode, member{name: fmt.Sprintf("decode-%d", i), role: "decode", control: control[p+i], at: freeAddresses(t, 2), tp: 1, cpu: p + i})
			c.decode = append(c.decode, backend{url: "http://" + decode[i].at[0], control: "http://" + control[p+i]})
		}
		agents := w.key(t, "agents")
		own := w.key(t, "gateway-keys")
		for _, m := range slices.Concat(prefill, decode) {
			w.token(t, agents, m.name, "--engine", m.name, "--role", m.role, "--scope", "write read")
		}
		w.token(t, agents, "gateway", "--scope", "plane")
		c.more = fmt.Sprintf("auth: {agents: {keys: [%q], issuer: pdrouter}, records: {key_file: %q, trusted: [%q]}, control_token_file: %q}\nlimits: {retry_floor: 16}\n",
			public(agents), own, public(own), filepath.Join(w.dir, "gateway.token"))
		w.front = serveSoon(t, v.gateway, c)
		for i := range prefill {
			w.start(t, &prefill[i])
		}
		for i := range decode {
			w.start(t, &decode[i])
		}
		for _, m := range slices.Concat(prefill, decode) {
			m.ready(t, m.url+"/health", started)
		}
		until(t, 3*time.Minute, "every pair has shaken hands", func() bool { return w.front.counter(t, "pdrouter_pairs_ready") == float64(p*d) })
		w.front.warm(t)
	})
	return w, prefill, decode
}

// serveSoon starts the gateway, which is ready when its engines are.
func serveSoon(t *testing.T, binary string, c config) gateway {
	t.Helper()
	at := freeAddresses(t, 2)
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(path, []byte(c.text(at[0], at[1])), 0o600); err != nil {
		t.Fatal(err)
	}
	g := gateway{start(t, "pdrouter", nil, binary, "serve", "-c", path), "http://" + at[0], "http://" + at[1]}
	g.ready(t, g.operations+"/metrics", time.Minute)
	return g
}

// key makes a key and returns the file of its private part.
func (w *plane) key(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(w.dir, name)
	runs(t, w.gateway, "keys", "new", "--out", dir)
	files, _ := filepath.Glob(filepath.Join(dir, "*.jwk"))
	i := slices.IndexFunc(files, func(f string) bool { return !strings.HasSuffix(f, ".pub.jwk") })
	if i < 0 {
		t.Fatalf("pdrouter keys new has made %v", files)
	}
	return files[i]
}

func public(key string) string { return strings.TrimSuffix(key, ".jwk") + ".pub.jwk" }

// token makes a file with a token for the audience of engines.
func (w *plane) token(t *testing.T, key, subject string, more ...string) {
	t.Helper()
	out, err := exec.Command(w.gateway, append([]string{"token", "mint", "--key", key, "--audience", "pdrouter-metadata", "--subject", subject, "--ttl", "2h"}, more...)...).Output()
	if err == nil {
		err = os.WriteFile(filepath.Join(w.dir, subject+".token"), out, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// start starts an engine of the plane, for the first time or again.
func (w *plane) start(t *testing.T, m *member) {
	t.Helper()
	host, _, _ := net.SplitHostPort(m.control)
	keys, _ := filepath.Glob(filepath.Join(w.dir, "agents", "*.pub.jwk"))
	records, _ := filepath.Glob(filepath.Join(w.dir, "gateway-keys", "*.pub.jwk"))
	transfer, err := json.Marshal(map[string]any{
		"kv_connector": "PdrouterConnector", "kv_connector_module_path": "pdrouter_vllm", "kv_buffer_device": "cpu",
		"kv_role": map[string]string{"prefill": "kv_producer", "decode": "kv_consumer"}[m.role],
		"kv_connector_extra_config": map[string]any{
			"engine": m.name, "gateway": "http://" + w.agents, "token_file": filepath.Join(w.dir, m.name+".token"), "control": m.control,
			"control_keys": keys, "record_keys": records, "transport": "tcp", "plane_listen": net.JoinHostPort(host, "0"),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.engine = w.engine(t, role{name: m.name, cpu: m.cpu, tp: m.tp, transfer: string(transfer)}, m.at)
}

// came adds up what the engines' metrics say that came, or went, in this way.
func came(t *testing.T, engines []member, name string, labels ...string) (n float64) {
	t.Helper()
	for _, m := range engines {
		v, _ := scrape(t, m.url).sum(name, labels...) // a label that nothing was counted for is not there
		n += v
	}
	return n
}

// compare asks the scenarios, and compares the engines' counters with what was asked.
func (w *plane) compare(t *testing.T, prefill, decode []member) {
	t.Helper()
	all := slices.Concat(prefill, decode)
	rest := func() {
		until(t, 30*time.Second, "no block is held", func() bool {
			return !slices.ContainsFunc(all, func(m member) bool { return !unused(t, m.engine) })
		})
	}
	look := func() map[string]float64 {
		rest()
		out := map[string]float64{
			"released": came(t, decode, "pdrouter_plane_transfers_total", `ending="released"`),
			"freed":    came(t, prefill, "pdrouter_plane_transfers_total", `ending="freed"`),
			"refused":  came(t, all, "pdrouter_plane_refused_total"),
			"bytes":    came(t, prefill, "pdrouter_plane_written_bytes_total"),
		}
		for _, source := range []string{"external_kv_transfer", "local_compute", "local_cache_hit"} {
			out[source] = came(t, decode, "vllm:prompt_tokens_by_source_total", `source="`+source+`"`)
		}
		return out
	}
	before := look()
	var asked report
	w.step(t, "compare split requests", func() { asked = compare(t, w.front.url, w.python(), w.answers, "split", "fan") })
	after := look()
	grew := func(name string) float64 { return after[name] - before[name] }
	n := float64(asked.HandOffs)
	t.Logf("%d hand-offs of %d prompt tokens: decode had %v by external_kv_transfer, %v by local_cache_hit, %v by local_compute; %v bytes",
		asked.HandOffs, asked.PromptTokens, grew("external_kv_transfer"), grew("local_cache_hit"), grew("local_compute"), grew("bytes"))
	for name, want := range map[string]float64{"released": n, "freed": n, "refused": 0, "local_compute": 0} {
		if got := grew(name); got != want {
			t.Errorf("%s: %v; want %v for %v hand-offs", name, got, want, n)
		}
	}
	if got := grew("external_kv_transfer") + grew("local_cache_hit"); got != float64(asked.PromptTokens) {
		t.Errorf("decode accounts for %v prompt tokens; want %d", got, asked.PromptTokens)
	}
	if grew("external_kv_transfer") <= grew("local_cache_hit") || grew("bytes") == 0 {
		t.Errorf("the prompts did not come from prefill: %v", after)
	}
	w.step(t, "compare requests for decode alone", func() { compare(t, w.front.url, w.python(), w.answers, "alone") })
	after, before = look(), after
	if grew("local_compute") == 0 || grew("released") != 0 {
		t.Errorf("decode alone: local_compute rose by %v tokens, transfers by %v; the counters prove nothing", grew("local_compute"), grew("released"))
	}
	w.counted(t, decode)
}

// counted has one request, and reads from the gateway that every consumer's completions were counted.
func (w *plane) counted(t *testing.T, decode []member) {
	t.Helper()
	q, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, w.front.url+"/v1/completions",
		strings.NewReader(`{"model":"tiny","prompt":"how many have been counted of how many","max_tokens":4,"temperature":0}`))
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("X-Request-Id", "counted")
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	var page struct {
		Books struct {
			Counted map[string]string
			Ready   bool
			Bytes   uint64
		}
	}
	until(t, 20*time.Second, "the gateway has the books of a request", func() bool {
		body, err := read(t.Context(), w.front.operations+"/requests?id=counted")
		return err == nil && json.Unmarshal(body, &page) == nil && page.Books.Ready && page.Books.Bytes > 0
	})
	if len(page.Books.Counted) != decode[0].tp {
		t.Errorf("counted %v; want one line for each of %d consumers", page.Books.Counted, decode[0].tp)
	}
	for rank, of := range page.Books.Counted {
		if k, n, _ := strings.Cut(of, "/"); k != n || k == "0" {
			t.Errorf("rank %s: counted %s; want all", rank, of)
		}
	}
	t.Logf("completions counted by consumer: %v", page.Books.Counted)
}

// leaves has clients leave at random moments, half of them while other requests run, and checks that nothing stays held.
func (w *plane) leaves(t *testing.T, l *load, prefill, decode member) {
	t.Helper()
	n := 20
	if s := os.Getenv("N"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	const seed = 8
	rng := rand.New(rand.NewPCG(seed, 0))
	stop := func() int { return 0 }
	left, beside := 0, 0
	for i := range n {
		if i == n/2 {
			stop = l.run(t, w.front.url)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(700))*time.Millisecond)
		prompt := fmt.Sprintf("client %d leaves: %s", i, strings.Repeat("a long way to go ", 20+rng.IntN(60)))
		if status, _ := complete(ctx, w.front.url, prompt, 300, i%2 == 0); status == 0 {
			left++
		}
		cancel()
	}
	beside = stop()
	began := time.Now()
	until(t, 30*time.Second, "both engines' blocks are free again", func() bool { return unused(t, prefill.engine) && unused(t, decode.engine) })
	t.Logf("seed %d: %d of %d have left, %d requests beside them; free %.1f s after the last", seed, left, n, beside, time.Since(began).Seconds())
	w.quiet(t, prefill, decode)
}

// quiet checks that no engine of the plane has anything left.
func (w *plane) quiet(t *testing.T, members ...member) {
	t.Helper()
	for _, m := range members {
		left := ""
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			left = ""
			c := scrape(t, m.url)
			for _, name := range []string{"held_blocks", "pinned_blocks", "quarantined_blocks", "legs"} {
				if v, _ := c.sum("pdrouter_plane_" + name); v != 0 {
					left += fmt.Sprintf(" %s %v", name, v)
				}
			}
			if left == "" {
				break
			}
		}
		if left != "" {
			t.Errorf("%s still has%s", m.name, left)
		}
	}
}

// prefillDies kills prefill while decode waits for it and other requests run, and starts it again.
func (w *plane) prefillDies(t *testing.T, l *load, prefill *member, decode member) {
	t.Helper()
	_ = syscall.Kill(-prefill.cmd.Process.Pid, syscall.SIGSTOP)
	var wg sync.WaitGroup
	for _, p := range l.prompts {
		wg.Go(func() {
			if status, got := complete(t.Context(), w.front.url, p+" again", 12, false); status != http.StatusOK || got == "" {
				t.Errorf("prefill died: status %d, %q", status, got)
			}
		})
	}
	n := held(t, prefill.engine, decode.engine)
	stop := l.run(t, w.front.url)
	prefill.kill()
	wg.Wait()
	time.Sleep(time.Second)
	asked := stop()
	began := time.Now()
	until(t, 25*time.Second, "decode's blocks are free again", func() bool { return unused(t, decode.engine) })
	t.Logf("%v requests waited as prefill died, %d beside them; free %.1f s after the last one", n, asked, time.Since(began).Seconds())
	w.quiet(t, decode)
	for _, p := range l.prompts { // what was given back is no wrong prefix to anybody
		if status, got := complete(t.Context(), w.front.url, p, 12, false); status != http.StatusOK || got != l.want[p] {
			t.Errorf("afterwards: status %d, %q; want %q", status, got, l.want[p])
		}
	}
	w.start(t, prefill)
	prefill.ready(t, prefill.url+"/health", started)
	until(t, time.Minute, "a request is split again", func() bool { _, reason, _ := w.front.ask(t); return reason == "split" })
	for _, p := range l.prompts {
		if status, got := complete(t.Context(), w.front.url, p, 12, true); status != http.StatusOK || got != l.want[p] {
			t.Errorf("with the new run: status %d, %q; want %q", status, got, l.want[p])
		}
	}
}
