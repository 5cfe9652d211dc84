package gateway

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// fakeTalker is an engine whose answers are streams of as many events as it is told to send.
type fakeTalker struct {
	srv  *httptest.Server
	more chan bool // one more event, or false for the last
}

func newFakeTalker(t *testing.T) *fakeTalker {
	f := &fakeTalker{more: make(chan bool)}
	f.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			if r.URL.Path != "/health" {
				http.NotFound(w, r)
			}
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for more := true; more; {
			fmt.Fprint(w, `data: {"id":"x","object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":null}]}`+"\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case more = <-f.more:
			case <-r.Context().Done():
				return
			}
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(f.srv.Close)
	return f
}

// TestFault67BadFileChangesNothing: a file with a mistake is refused with its line, what was in use stays, and a stream that
// is under way notices nothing; nor of a sound one that takes away its engine, its model and its listener.
func TestFault67BadFileChangesNothing(t *testing.T) {
	engine := newFakeTalker(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	const listen = "listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\n"
	models := fmt.Sprintf("models: [{name: first, engines: [{name: e, url: %q}]}]\n", engine.srv.URL)
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(path, []byte(listen+models), 0o600); err != nil {
		t.Fatal(err)
	}
	c := ServeFile(t, path)
	resp, err := http.Post("http://"+c.clients.Addr().String()+"/v1/completions", "application/json",
		strings.NewReader(`{"model":"first","prompt":"a","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	event := make([]byte, 1)
	for _, row := range []struct{ name, text, want string }{
		{"not YAML", listen + models + "timeouts: {drain: [\n", "is not YAML"},
		{"unknown key", listen + models + "timeout: {drain: 1s}\n", "gateway.yaml:3: timeout is not a key here"},
		{"another kind", listen + models + "timeouts: {drain: soon}\n", "gateway.yaml:3: timeouts.drain"},
		{"policy", listen + models + "policy: {default: {decode: {policy: best}}}\n", "gateway.yaml:3: policy.default.decode"},
		{"policy file", listen + models + "policy: {file: none.yaml}\n", "gateway.yaml:3: policy.file"},
		{"engines", listen + "models: [{name: first, engines: [{name: e, url: \"http://a\"}, {name: e, url: \"http://b\"}]}]\n", `gateway.yaml:2: models[0] "first": engines[1].name is "e"`},
		{"key file", listen + "models: [{name: first, engines: [{name: e, url: \"http://a\", bearer_token_file: none}]}]\n", "gateway.yaml:2: models[0]"},
		{"port taken", fmt.Sprintf("listen: {clients: %q, operations: \"127.0.0.1:0\"}\n", taken.Addr()) + models, "gateway.yaml:1: listen.clients cannot be used"},
		{"fixed", listen + models + "metadata: {store: redis, redis: {address: \"127.0.0.1:1\"}}\n", "gateway.yaml:3: metadata.store is not what it was"},
		{"two", listen + models + "limits: {body: -1}\nlog: {level: loud}\n", "gateway.yaml:4: log.level"},
	} {
		refused := c.reloads.stats().Refused
		c.Write(row.text)
		status, _, mistakes := c.Reload()
		if status != http.StatusBadRequest || !slices.ContainsFunc(mistakes, func(m string) bool { return strings.Contains(m, row.want) }) {
			t.Errorf("%s: %d %q; want 400 and %q", row.name, status, mistakes, row.want)
		}
		if s := c.reloads.stats(); s.Refused <= refused || !s.Behind || s.Applied != 0 {
			t.Errorf("%s: counted %+v", row.name, s)
		}
		if said := c.Models(); !strings.Contains(said, `"first"`) {
			t.Errorf("%s: models are %s", row.name, said)
		}
		engine.more <- true
		if _, err := io.ReadFull(resp.Body, event); err != nil {
			t.Fatalf("%s: the stream: %v", row.name, err)
		}
	}
	old := c.clients.Addr().String()
	applied := c.reloads.stats().Applied
	c.Write("listen: {clients: \"localhost:0\", operations: \"127.0.0.1:0\"}\n" + strings.Replace(strings.Replace(models, "first", "second", 1), "name: e,", "name: other,", 1) +
		"limits: {body: 1000}\n")
	status, changed, mistakes := c.Reload()
	if want := []string{"listen.clients", "models[0].name", "models[0].engines[0].name", "limits.body"}; status != http.StatusOK || !slices.Equal(changed, want) {
		t.Errorf("got %d %q %q; want 200 and %q", status, changed, mistakes, want)
	}
	for range 3 { // the looks that would find it once more
		if c.files.changed() {
			t.Error("what was read is to be read again")
		}
	}
	if n := c.reloads.stats().Applied; n != applied+1 {
		t.Errorf("one reload is counted %d times", n-applied)
	}
	Until(t, "the old address is closed", func() bool {
		conn, err := net.Dial("tcp", old)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	if said := c.Models(); !strings.Contains(said, `"second"`) {
		t.Errorf("models are %s", said)
	}
	long, err := http.Post("http://"+c.clients.Addr().String()+"/v1/completions", "application/json",
		strings.NewReader(`{"model":"second","prompt":"`+strings.Repeat("a", 1000)+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	long.Body.Close()
	if long.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of more than 1000 bytes: status %d", long.StatusCode)
	}
	engine.more <- false
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %v after %q", err, rest)
	}
}

// TestReloadByItself: the file is read again when the folder that it stands in is swapped, as Kubernetes swaps that of a
// ConfigMap; when a file that it names changes; and on SIGHUP.
func TestReloadByItself(t *testing.T) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP) // else one that comes early would end the test
	defer signal.Stop(hangup)
	engine := newFakeTalker(t)
	dir := t.TempDir()
	folder := func(name, model, policy string) string {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\nmodels: [{name: %s, engines: [{name: e, url: %q}]}]\npolicy: {file: policy.yaml}\n", model, engine.srv.URL)
		for file, text := range map[string]string{"gateway.yaml": text, "policy.yaml": policy} {
			if err := os.WriteFile(filepath.Join(dir, name, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return name
	}
	swap := func(to string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	swap(folder("..1", "first", "default: {decode: {policy: round_robin}}\n"))
	for _, file := range []string{"gateway.yaml", "policy.yaml"} {
		if err := os.Symlink(filepath.Join("..data", file), filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	c := ServeFile(t, filepath.Join(dir, "gateway.yaml"))
	swap(folder("..2", "second", "default: {decode: {policy: round_robin}}\n"))
	Until(t, "the swapped folder is read", func() bool { return strings.Contains(c.Models(), `"second"`) })
	before := c.current.Load().l.Routing
	swap(folder("..3", "second", "default: {decode: {policy: least_load}}\n"))
	Until(t, "the policy is read", func() bool { return c.current.Load().l.Routing != before })
	swap(folder("..4", "third", "default: {decode: {policy: best}}\n"))
	Until(t, "a policy with a mistake is refused", func() bool { return c.reloads.stats().Behind })
	if said := c.Models(); !strings.Contains(said, `"second"`) {
		t.Errorf("models are %s", said)
	}
	n := c.reloads.stats().Refused
	Until(t, "SIGHUP reads again", func() bool {
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		return c.reloads.stats().Refused > n
	})
}
