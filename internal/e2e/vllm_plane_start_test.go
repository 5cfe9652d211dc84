//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// plane is a gateway with connector kvplane and vLLM engines that join it by pdrouter's own connector, from its wheel.
type plane struct {
	*vllm
	dir                    string // keys, tokens
	agents, signer, keeper string // the gateway's listener for engines; private keys: of tokens, of the gateway's records
	front                  gateway
	prefill, decode, both  []*member  // that the gateway's configuration has
	policy                 string     // section of the configuration; "": what can be split is split
	kind                   string     // of the model
	t                      *testing.T // the test that engines live as long as
}

// member is an engine of the plane, and where it is found again when it is started anew.
type member struct {
	engine
	name, role, control string
	at                  []string
	tp, cpu             int
	had                 time.Duration // of CPU time when it was last seen to go on with its start
	seen                time.Time     // when that was
}

// newPlane makes the keys; nothing runs yet.
func newPlane(t *testing.T, v *vllm, kind string) *plane {
	t.Helper()
	w := &plane{vllm: v, kind: kind, t: t, dir: t.TempDir(), agents: freeAddresses(t, 1)[0]}
	w.signer, w.keeper = w.key(t, "agents"), w.key(t, "gateway-keys")
	w.token(t, "gateway", "--scope", "plane")
	return w
}

// add names one more engine of the role, with a token, and starts it.
func (w *plane) add(t *testing.T, role string) {
	t.Helper()
	list := map[string]*[]*member{"prefill": &w.prefill, "decode": &w.decode, "both": &w.both}[role]
	at := freeAddresses(t, 3)
	section := strings.Replace(role, "both", "engines", 1) // of the configuration, which names engines by it
	m := &member{name: fmt.Sprintf("%s-%d", section, len(*list)), role: role, control: at[2], at: at[:2], tp: 1, cpu: len(w.all())}
	w.token(t, m.name, "--engine", m.name, "--role", role, "--scope", "write read")
	*list = append(*list, m)
	w.start(t, m)
}

func (w *plane) all() []*member { return slices.Concat(w.prefill, w.decode, w.both) }

// joined has the gateway, which is started first or reads its configuration again, serve with these engines, and waits until all of
// them are healthy, every pair has shaken hands, and a request is split.
func (w *plane) joined(t *testing.T) {
	t.Helper()
	c := config{connector: "kvplane", agents: w.agents}
	for list, to := range map[*[]*member]*[]backend{&w.prefill: &c.prefill, &w.decode: &c.decode, &w.both: &c.engines} {
		for _, m := range *list {
			*to = append(*to, backend{url: "http://" + m.at[0], control: "http://" + m.control})
		}
	}
	c.more = w.policy + fmt.Sprintf("auth: {agents: {keys: [%q], issuer: pdrouter}, records: {key_file: %q, trusted: [%q]}, control_token_file: %q}\nlimits: {retry_floor: 32}\n",
		public(w.signer), w.keeper, public(w.keeper), filepath.Join(w.dir, "gateway.token"))
	if w.front.process == nil {
		w.front = launch(t, w.gateway, c)
	} else {
		applied := func() float64 {
			n, _ := scrape(t, w.front.operations).sum("pdrouter_config_reloads_total", `result="applied"`)
			return n
		}
		before := applied()
		w.front.write(t, c)
		if err := w.front.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		until(t, time.Minute, "the gateway has read its configuration again", func() bool { return applied() > before })
	}
	for _, m := range w.all() {
		until(t, 2*started, m.name+" is healthy", func() bool { return w.healthy(t, m) })
	}
	n := float64(len(w.prefill)*len(w.decode) + len(w.both)*(len(w.both)-1))
	until(t, 3*time.Minute, "every pair has shaken hands", func() bool { return w.front.counter(t, "pdrouter_pairs_ready") == n })
	if w.policy == "" {
		w.front.warm(t)
	}
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
func (w *plane) token(t *testing.T, subject string, more ...string) {
	t.Helper()
	out, err := exec.Command(w.gateway, append([]string{"token", "mint", "--key", w.signer, "--audience", "pdrouter-metadata", "--subject", subject, "--ttl", "2h"}, more...)...).Output()
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
		"kv_role": map[string]string{"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}[m.role],
		"kv_connector_extra_config": map[string]any{
			"engine": m.name, "gateway": "http://" + w.agents, "token_file": filepath.Join(w.dir, m.name+".token"), "control": m.control,
			"control_keys": keys, "record_keys": records, "transport": "tcp", "plane_listen": net.JoinHostPort(host, "0"),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	is := role{name: m.name, cpu: m.cpu, tp: m.tp, transfer: string(transfer), forgets: true}
	if m.role == "prefill" {
		is.batch = 512
	}
	m.engine, m.had, m.seen = w.engine(w.t, is, m.at), 0, time.Now()
}

// healthy reports whether an engine has come up. One start in some dozens hangs in its worker, in the kernel; such a one is started
// again, as whoever runs engines would: it uses no CPU time any more, which one that is slow does.
func (w *plane) healthy(t *testing.T, m *member) bool {
	t.Helper()
	if _, err := read(t.Context(), m.url+"/health"); err == nil {
		return true
	}
	select {
	case <-m.ended:
		t.Fatalf("%s: ended before it was ready: %v", m.name, m.err)
	default:
	}
	if time.Since(m.seen) < 10*time.Second {
		return false
	}
	if used := m.used(t); used > m.had+time.Second {
		m.had, m.seen = used, time.Now()
	} else if time.Since(m.seen) > 90*time.Second {
		t.Logf("%s does not go on with its start, and is started again; it said last:\n%s", m.name, m.tail(5))
		m.kill()
		w.start(t, m)
	}
	return false
}

// used is the CPU time of all of the engine's processes.
func (m *member) used(t *testing.T) time.Duration {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		t.Fatalf("/proc: %v", err)
	}
	var ticks int64
	for _, f := range stats {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		// Behind the name: state, parent, group, and from the twelfth on the user's and the system's time in hundredths of a second.
		of := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(of) < 13 || of[2] != strconv.Itoa(m.cmd.Process.Pid) {
			continue
		}
		for _, field := range of[11:13] {
			n, _ := strconv.ParseInt(field, 10, 64)
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
