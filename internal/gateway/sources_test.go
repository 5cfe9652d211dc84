package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/gateway"
	"pdrouter/router"
)

// TestKubernetesThatIsAwayChangesNothing moves an engine from the list to pods of Kubernetes whose API server does not answer: the engine stays
// in use, and /ready and a metric say what is wrong.
func TestKubernetesThatIsAwayChangesNothing(t *testing.T) {
	one := gateway.NewFakeServing(t, "one", "127.0.0.1:0")
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: k, cluster: {server: "http://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: k, namespace: llm}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const listen = "listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\ntimeouts: {pre_stop_delay: 1ms}\n"
	path := filepath.Join(dir, "gateway.yaml")
	if err := os.WriteFile(path, []byte(listen+fmt.Sprintf("models: [{name: m, engines: [{name: one, url: %q}]}]\n", one.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := gateway.ServeFile(t, path)
	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + c.Operations().String() + path)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	for s, _ := get("/ready"); s != 200; s, _ = get("/ready") {
		time.Sleep(10 * time.Millisecond)
	}
	c.Write(listen + fmt.Sprintf("models: [{name: m, engines_from: {kubernetes: {labels: {app: vllm}, kubeconfig: %q}}}]\n", kubeconfig))
	if s, _, m := c.Reload(); s != 200 {
		t.Fatal(s, m)
	}
	var state router.Stats
	for end := time.Now().Add(20 * time.Second); len(state.Sources) == 0; time.Sleep(10 * time.Millisecond) {
		s, body := get("/ready")
		if err := json.Unmarshal([]byte(body), &state); err != nil || s != 200 || len(state.Engines) != 1 || state.Engines[0].Name != "one" {
			t.Fatalf("%d %s, %v", s, body, err)
		}
		if time.Now().After(end) {
			t.Fatal("it is never said that the API server is away")
		}
	}
	if s := state.Sources[0]; s.Model != "m" || s.List != "engines" || s.Source != "kubernetes" || !strings.Contains(s.Why, "127.0.0.1:1") || s.AgeSeconds != 0 {
		t.Errorf("%+v", s)
	}
	if _, text := get("/metrics"); !strings.Contains(text, `pdrouter_source_stale{list="engines",model="m"} 1`) {
		t.Error("no metric says it")
	}
}
