package uitest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// hostile is text that is markup where a page takes it for that.
const hostile = `<img src=x onerror="window.injected=1"><b>bold</b>`

// fleet is a gateway with engines, each a process of its own, and one engine of the test's that fails with hostile text.
type fleet struct {
	t       *testing.T
	bin     string
	dir     string
	clients string
	admin   string // base URLs
	ops     string
	tokens  map[string]string // by scope
	engines map[string]*exec.Cmd
	config  string
}

// policy has every longer prompt split, over all engines.
const policy = "policy: {default: {split: {min_prompt_tokens: 16}, prefill: round_robin, decode: least_load}}\n"

// names of the engines that are processes.
var names = []string{"prefill-0", "prefill-1", "decode-0", "decode-1"}

// startFleet builds pdrouter from this tree and starts all. withHostile adds the model whose name is hostile, and whose engine fails.
func startFleet(t *testing.T, withHostile bool) *fleet {
	t.Helper()
	f := &fleet{t: t, dir: t.TempDir(), tokens: map[string]string{}, engines: map[string]*exec.Cmd{}}
	f.bin = filepath.Join(f.dir, "pdrouter")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", f.bin, "./cmd/pdrouter")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	f.pdrouter("keys", "rotate", "--dir", "keys")
	mint := func(args ...string) string {
		return strings.TrimSpace(f.pdrouter(append([]string{"token", "mint", "--key", "keys/current.jwk", "--ttl", "1h"}, args...)...))
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("gateway.token", mint("--audience", "pdrouter-metadata", "--subject", "gateway", "--scope", "plane"))
	for _, name := range names {
		role, _, _ := strings.Cut(name, "-")
		write(name+".token", mint("--audience", "pdrouter-metadata", "--subject", name, "--engine", name, "--role", role, "--scope", "write read"))
	}
	for scope, scopes := range map[string]string{"read": "read", "all": "read write engines"} {
		f.tokens[scope] = mint("--audience", "pdrouter-admin", "--subject", "ann", "--scope", scopes)
	}
	bad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			return // it is healthy
		}
		w.WriteHeader(http.StatusInternalServerError)
		to := json.NewEncoder(w)
		to.SetEscapeHTML(false)
		_ = to.Encode(map[string]any{"error": map[string]any{"message": hostile, "code": 500}})
	}))
	t.Cleanup(bad.Close)

	at := addresses(t, 4+2*len(names))
	f.clients, f.ops, f.admin = "http://"+at[0], "http://"+at[1], "http://"+at[2]
	agents := at[3]
	at = at[4:]
	var c strings.Builder
	fmt.Fprintf(&c, "listen: {clients: %q, operations: %q, admin: %q, agents: %q}\n", strings.TrimPrefix(f.clients, "http://"), strings.TrimPrefix(f.ops, "http://"),
		strings.TrimPrefix(f.admin, "http://"), agents)
	c.WriteString("models:\n- name: tiny\n  connector: kvplane\n")
	for i, name := range names {
		if i%2 == 0 {
			role, _, _ := strings.Cut(name, "-")
			fmt.Fprintf(&c, "  %s:\n", role)
		}
		fmt.Fprintf(&c, "  - {name: %s, url: \"http://%s\", control: \"http://%s\"}\n", name, at[2*i], at[2*i+1])
	}
	if withHostile {
		fmt.Fprintf(&c, "- name: %q\n  connector: none\n  engines:\n  - {name: bad, url: %q}\n", hostile, bad.URL)
	}
	c.WriteString(policy)
	c.WriteString("auth: {agents: {keys: [keys], issuer: pdrouter}, admins: {keys: [keys], issuer: pdrouter}, control_token_file: gateway.token}\n")
	c.WriteString("timeouts: {health: 500ms, pre_stop_delay: 1ms}\nhealth: {slow_start: 0s}\nmigration: {mode: dry_run, min_tokens: 16}\n")
	f.config = c.String()
	write("pdrouter.yaml", f.config)
	f.start("gateway", "serve", "-c", "pdrouter.yaml")
	for i, name := range names {
		role, _, _ := strings.Cut(name, "-")
		f.engines[name] = f.start(name, "mock-engine", "--name", name, "--role", role, "--model", "tiny", "--listen", at[2*i], "--control", at[2*i+1], "--transport", "tcp",
			"--gateway", "http://"+agents, "--token-file", name+".token", "--control-keys", "keys", "--prefill-us-per-token", "300", "--decode-us-per-step", "4000")
	}
	f.until("the fleet is ready", func() bool {
		var s struct {
			Warm int `json:"pairs_warm"`
		}
		return f.get("/status", &s) == nil && s.Warm == 4
	})
	return f
}

// pdrouter runs a command to its end, and returns what it prints.
func (f *fleet) pdrouter(args ...string) string {
	f.t.Helper()
	cmd := exec.Command(f.bin, args...)
	cmd.Dir = f.dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		f.t.Fatalf("pdrouter %v: %v\n%s", args, err, errs.String())
	}
	return string(out)
}

// start starts a process that ends with the test.
func (f *fleet) start(name string, args ...string) *exec.Cmd {
	f.t.Helper()
	log, err := os.Create(filepath.Join(f.dir, name+".log"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(f.bin, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = f.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be dead
		_ = cmd.Wait()
		if f.t.Failed() {
			f.t.Logf("the end of %s.log:\n%s", name, tail(f.log(name), 4000))
		}
	})
	return cmd
}

// log is what a process has written.
func (f *fleet) log(name string) string {
	b, err := os.ReadFile(filepath.Join(f.dir, name+".log"))
	if err != nil {
		f.t.Error(err)
	}
	return string(b)
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// get asks the admin listener as an administrator.
func (f *fleet) get(path string, to any) error {
	req, err := http.NewRequest(http.MethodGet, f.admin+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+f.tokens["all"])
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(to)
}

// complete sends a request, and returns the status of its answer.
func (f *fleet) complete(model, prompt string, stream bool, tokens int) int {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": tokens, "stream": stream})
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := http.Post(f.clients+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		f.t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func (f *fleet) until(what string, ok func() bool) {
	f.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("never: %s", what)
		}
	}
}

// addresses returns loopback addresses on which nothing listens at this moment.
func addresses(t *testing.T, n int) []string {
	t.Helper()
	var out []string
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		out = append(out, ln.Addr().String())
	}
	return out
}
