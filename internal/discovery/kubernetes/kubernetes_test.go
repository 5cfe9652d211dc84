package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// apiServer serves lists and watches of pods and InferencePools, as Kubernetes does. The end-to-end tests have the real one.
type apiServer struct {
	*httptest.Server
	mu      sync.Mutex
	version int
	pods    []*unstructured.Unstructured
	pool    *unstructured.Unstructured
	down    bool
	asked   []string // what was asked of pods: the label selector of each request
	watches map[chan struct{}]bool
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{version: 1, watches: map[chan struct{}]bool{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() { s.set(func() { s.down = true }); s.Close() })
	return s
}

// set changes what the server has, and ends its watches, as if it were started anew: watchers list again.
func (s *apiServer) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.version++
	for c := range s.watches {
		close(c)
	}
	s.watches = map[chan struct{}]bool{}
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := r.URL.Query()
	of := "pods"
	if strings.HasSuffix(r.URL.Path, "/inferencepools") {
		of = "inferencepools"
	} else {
		s.asked = append(s.asked, q.Get("labelSelector"))
	}
	watch := q.Get("watch") != ""
	fail := func(code int, reason string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":"no"}`, code, reason)
	}
	switch {
	case s.down:
		fail(http.StatusServiceUnavailable, "ServiceUnavailable")
		return
	case q.Get("sendInitialEvents") == "true": // a server without streamed lists
		fail(http.StatusUnprocessableEntity, "Invalid")
		return
	case watch && q.Get("resourceVersion") != fmt.Sprint(s.version):
		fail(http.StatusGone, "Expired")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if watch {
		end := make(chan struct{})
		s.watches[end] = true
		s.mu.Unlock()
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		select {
		case <-end:
		case <-r.Context().Done():
		}
		s.mu.Lock()
		return
	}
	items := []any{}
	if of == "pods" {
		for _, p := range s.pods {
			items = append(items, p.Object)
		}
	} else if s.pool != nil {
		items = append(items, s.pool.Object)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": fmt.Sprint(s.version)}, "items": items})
}

// kubeconfig writes a file that leads to the server.
func (s *apiServer) kubeconfig(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: k, cluster: {server: %q}}], users: [{name: u, user: {}}], contexts: [{name: c, context: {cluster: k, user: u, namespace: llm}}]}`, s.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// watched runs a watcher until the test ends, and returns what waits until it has told of these endpoints.
func watched(t *testing.T, w *Watcher, told chan []Endpoint) func(want ...string) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return func(want ...string) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		var last []string
		for {
			select {
			case all := <-told:
				if last = shown(all); cmp.Equal(last, append([]string{}, want...)) {
					return
				}
			case <-deadline:
				t.Fatalf("got %v; want %v", last, want)
			}
		}
	}
}

func newWatcher(c Config) (*Watcher, chan []Endpoint) {
	told := make(chan []Endpoint, 100)
	return New(c, func(all []Endpoint) { told <- all }, slog.New(slog.DiscardHandler)), told
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("never: " + what)
}

// TestAPIServerThatIsAwayChangesNothing: what was known stays, and it is said; what changed meanwhile is taken once it is back.
func TestAPIServerThatIsAwayChangesNothing(t *testing.T) {
	s := newAPIServer(t)
	s.pods = []*unstructured.Unstructured{aPod("a", "1", "10.0.0.1")}
	w, told := newWatcher(Config{Selector: map[string][]string{"role": {"prefill", "both"}}, DefaultPort: 8000, Kubeconfig: s.kubeconfig(t)})
	want := watched(t, w, told)
	want("a@10.0.0.1:8000")
	until(t, "the watch is open", func() bool { return !w.Stats().Stale && !w.Stats().Good.IsZero() })
	s.mu.Lock()
	if s.asked[0] != "role in (both,prefill)" {
		t.Errorf("asked for pods with %q", s.asked)
	}
	s.mu.Unlock()
	s.set(func() { s.down = true })
	until(t, "it is stale", func() bool { return w.Stats().Stale })
	if st := w.Stats(); st.Why == "" || st.Failures == 0 || st.Pods != 1 {
		t.Errorf("stats %+v", st)
	}
	select {
	case all := <-told:
		t.Errorf("told of %v while the API server was away", all)
	default:
	}
	s.set(func() { s.down = false; s.pods = append(s.pods, aPod("b", "2", "10.0.0.2")) })
	want("a@10.0.0.1:8000", "b@10.0.0.2:8000")
	until(t, "it is not stale", func() bool { return !w.Stats().Stale && w.Stats().Why == "" })
}

// TestPoolSaysWhichPods: an InferencePool selects pods besides the labels, and names their ports; one that goes changes nothing.
func TestPoolSaysWhichPods(t *testing.T) {
	pool := func(app string, port int64) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": map[string]any{"name": "p"},
			"spec": map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": app}}, "targetPorts": []any{map[string]any{"number": port}}}}}
	}
	s := newAPIServer(t)
	s.pods = []*unstructured.Unstructured{aPod("a", "1", "10.0.0.1")}
	w, told := newWatcher(Config{Selector: map[string][]string{"role": {"prefill"}}, Pool: "p", DefaultPort: 8000, Kubeconfig: s.kubeconfig(t)})
	want := watched(t, w, told)
	until(t, "the pool is missed", func() bool { return strings.Contains(w.Stats().Why, "there is no InferencePool p") })
	s.set(func() { s.pool = pool("vllm", 9000) })
	want("a@10.0.0.1:9000")
	until(t, "it is not stale", func() bool { return !w.Stats().Stale })
	s.set(func() { s.pool = pool("other", 9001) })
	want("a@10.0.0.1:9001")
	s.set(func() { s.pool = nil })
	until(t, "the pool is missed again", func() bool { return w.Stats().Stale })
	s.set(func() { s.pods = append(s.pods, aPod("b", "2", "10.0.0.2")) })
	want("a@10.0.0.1:9001", "b@10.0.0.2:9001")
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.asked[len(s.asked)-1]; last != "app in (other),role in (prefill)" {
		t.Errorf("pods are asked for with %q", last)
	}
}

// TestNothingSelectsEveryPod: a watcher without labels would send requests to whatever runs in the namespace.
func TestNothingSelectsEveryPod(t *testing.T) {
	s := newAPIServer(t)
	s.pods = []*unstructured.Unstructured{aPod("a", "1", "10.0.0.1")}
	w, told := newWatcher(Config{DefaultPort: 8000, Kubeconfig: s.kubeconfig(t)})
	watched(t, w, told)
	until(t, "it is said", func() bool { return strings.Contains(w.Stats().Why, "no labels select the pods") })
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.asked) != 0 {
		t.Errorf("pods were asked for with %q", s.asked)
	}
}
