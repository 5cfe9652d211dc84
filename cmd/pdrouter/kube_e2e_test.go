//go:build e2e

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"pdrouter/internal/demo"
	"pdrouter/internal/proc"
	"pdrouter/router"
)

// kubeFleet is a gateway whose engines are pods of a cluster, and the processes behind them.
type kubeFleet struct {
	*demo.Fleet
	t             *testing.T
	c             *cluster
	agents        string
	port, control string
	started       map[string]*proc.Process
	labels        map[string]map[string]string
	want          string // the one right text
	sent, failed  atomic.Int64
	mu            sync.Mutex
	pairs         map[string]int // requests by «prefill decode»
}

func newKubeFleet(t *testing.T, c *cluster, f *demo.Fleet) *kubeFleet {
	return &kubeFleet{Fleet: f, t: t, c: c, started: map[string]*proc.Process{}, labels: map[string]map[string]string{}, pairs: map[string]int{}}
}

// discovering is the configuration with a workload's pods in place of the engines that it lists.
func (k *kubeFleet) discovering(config, workload string) string {
	from := fmt.Sprintf("{kubernetes: {preset: pdrouter, workload: %s, ports: [%s], kubeconfig: %q}, control: \"http://{host}:%s\"}", workload, k.port, k.c.kubeconfig, k.control)
	begin, end := strings.Index(config, "  prefill:\n"), strings.Index(config, "policy:")
	return config[:begin] + "  prefill_from: " + from + "\n  decode_from: " + from + "\n" + config[end:]
}

const kubeModel = "tiny"

const kubeBody = `{"model":"` + demo.Model + `","prompt":"one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty","max_tokens":4}`

func portOf(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestKubernetes has a gateway in front of engines that are pods of a real API server.
func TestKubernetes(t *testing.T) {
	if _, err := os.Stat(kubeDeps + "/kube-apiserver"); err != nil {
		t.Fatal("there is no kube-apiserver: make e2e-kube builds it")
	}
	c := startCluster(t)
	f, take, must := bareFleet(t, 8)
	k := newKubeFleet(t, c, f)
	clients, agents, operations := take(), take(), take()
	k.agents, k.port, k.control = agents, portOf(t, take()), portOf(t, take())
	f.Client, f.Operations = "http://"+clients, "http://"+operations
	ip := 0
	for _, name := range []string{"p1", "d1", "p2", "d2", "p1b", "d1b", "p3", "d3"} {
		role := map[byte]string{'p': "prefill", 'd': "decode"}[name[0]]
		ip++
		f.Engines = append(f.Engines, demo.Engine{Name: name, Role: role, TP: 1, Address: fmt.Sprintf("127.77.0.%d:%s", ip, k.port), Control: fmt.Sprintf("127.77.0.%d:%s", ip, k.control)})
		k.labels[name] = map[string]string{"pdrouter.dev/role": role, "pdrouter.dev/model": kubeModel, "pdrouter.dev/revision": name[1:2]}
	}
	must(f.WriteKeys())
	config := k.discovering(f.Config(clients, agents, operations), kubeModel)
	must(os.WriteFile(f.Path("pdrouter.yaml"), []byte(config), 0o600))
	must(f.Start("gateway", "serve", "-c", f.Path("pdrouter.yaml")))
	must(f.StartAlone(take()))
	until(t, "the engine alone answers", func() bool { return f.Fetch(t.Context(), f.Alone+"/health", nil) == nil })
	var err error
	_, k.want, err = complete(f.Alone, kubeBody)
	must(err)

	k.add("p1")
	k.add("d1")
	until(t, "the gateway answers", func() bool { _, err := k.state(); return err == nil })
	if s, _ := k.state(); s.Ready || len(s.Engines) > 0 {
		t.Errorf("pods that are not ready are engines: %+v", s.Engines)
	}
	k.ready("p1")
	k.ready("d1")
	k.waitFor("the first pair is warm", func(s router.Stats) bool { return s.Ready && s.PairsWarm == 1 })
	k.add("p2")
	k.add("d2")
	k.ready("p2")
	k.ready("d2")
	k.waitFor("each revision has its pair, and no other", func(s router.Stats) bool { return s.PairsTotal == 4 && s.PairsWarm == 2 })

	ctx, stop := context.WithCancel(t.Context())
	running := k.load(ctx, 4)
	t.Run("revisions are not mixed", func(t *testing.T) {
		until(t, "both revisions serve", func() bool { return k.served("p1", "d1") > 20 && k.served("p2", "d2") > 20 })
	})
	t.Run("deleted pods lose no request", func(t *testing.T) {
		for _, name := range []string{"p1b", "d1b"} {
			k.add(name)
			k.ready(name)
		}
		k.waitFor("the new pods are warm", func(s router.Stats) bool { return s.PairsWarm == 5 })
		for _, name := range []string{"d1", "p1"} {
			begun := time.Now()
			c.deletePod(name)
			if name == "p1" { // it has a preStop hook, which asks; d1 is told to end at once
				until(t, "it may stop", func() bool {
					return k.Fetch(t.Context(), k.Operations+"/may-stop?engine="+name, nil) == nil
				})
				t.Logf("%s may stop %v after its deletion", name, time.Since(begun).Round(time.Millisecond))
			}
			k.signal(name)
			until(t, "it takes no more requests", func() bool {
				s, err := k.state()
				return err == nil && (k.stateOf(s, name) == "draining" || k.stateOf(s, name) == "gone")
			})
			t.Logf("%s is drained %v after its deletion", name, time.Since(begun).Round(time.Millisecond))
			<-k.started[name].Done
			c.finishPod(name)
			k.waitFor(name+" is gone", func(s router.Stats) bool {
				return !slices.ContainsFunc(s.Engines, func(e router.EngineStats) bool { return e.Name == name })
			})
		}
		before := k.served("p1b", "d1b")
		until(t, "the others of the revision serve", func() bool { return k.served("p1b", "d1b") > before+20 })
	})
	t.Run("a pod that is not ready is drained, and resumes", func(t *testing.T) {
		c.setPod("d1b", k.ip("d1b"), false)
		k.waitFor("it is drained", func(s router.Stats) bool { return k.stateOf(s, "d1b") == "draining" })
		c.setPod("d1b", k.ip("d1b"), true)
		k.waitFor("it is used", func(s router.Stats) bool { return k.stateOf(s, "d1b") == "up" })
	})
	t.Run("an API server that is killed changes nothing", func(t *testing.T) {
		n := k.sent.Load()
		must(c.server.Cmd.Process.Kill())
		<-c.server.Done
		k.waitFor("the source is stale", func(s router.Stats) bool { return len(s.Sources) == 2 && s.Ready && len(s.Engines) == 4 })
		until(t, "requests flow", func() bool { return k.sent.Load() > n+100 })
		c.startServer()
		c.waitServer()
		k.add("p3")
		k.add("d3")
		begun := time.Now()
		k.ready("p3")
		k.ready("d3")
		k.waitFor("what was made after it came back is used", func(s router.Stats) bool { return len(s.Sources) == 0 && len(s.Engines) == 6 && s.PairsWarm == 3 })
		t.Logf("in use %v after they were ready", time.Since(begun).Round(time.Millisecond))
		until(t, "the third revision serves", func() bool { return k.served("p3", "d3") > 5 })
	})
	stop()
	running.Wait()
	k.mu.Lock()
	for pair := range k.pairs {
		if p, d, split := strings.Cut(pair, " "); split && p != "" && p[1] != d[1] {
			t.Errorf("%d requests went to %s, which are of different revisions", k.pairs[pair], pair)
		}
	}
	t.Logf("%d requests, %d failed, by pair: %v", k.sent.Load(), k.failed.Load(), k.pairs)
	k.mu.Unlock()

	t.Run("a rolling restart of engines and gateways loses nothing", func(t *testing.T) { rollEverything(t, c) })

	t.Run("the manifests are taken, and the Job may make the Secrets", func(t *testing.T) {
		var files []string
		all, err := filepath.Glob("../../deploy/manifests/*.yaml")
		must(err)
		for _, file := range all {
			if filepath.Base(file) != "values.yaml" {
				files = append(files, file)
			}
		}
		if kinds := c.apply(files...); len(kinds) < 10 {
			t.Errorf("kinds: %v", kinds)
		}
		// As the Job's service account, with the rights that the manifests give it.
		b, err := os.ReadFile(c.kubeconfig)
		must(err)
		job := c.write("job.kubeconfig", strings.Replace(string(b), "token: gateway-token", "token: admin-token, as: \"system:serviceaccount:llm:pdrouter-secrets\"", 1))
		for _, want := range []string{"made pdrouter-signing-keys", "renewed pdrouter-gateway-token"} {
			p, err := proc.Start(f.Dir, "secrets", "keys", "kubernetes", "--kubeconfig", job)
			must(err)
			if <-p.Done; p.Err != nil || !strings.Contains(p.Tail(20), want) {
				t.Errorf("%v: %s; want %q", p.Err, p.Tail(20), want)
			}
		}
		secrets, err := c.of("", "secrets").List(t.Context(), metav1.ListOptions{})
		if must(err); len(secrets.Items) != 10 {
			t.Errorf("%d Secrets", len(secrets.Items))
		}
	})
	t.Run("an InferencePool selects the pods", func(t *testing.T) { k.pool(t, take()) })
}

// pool has a second gateway find engines by an InferencePool, whose definition is the test's own.
func (k *kubeFleet) pool(t *testing.T, clients string) {
	free, err := demo.FreeAddresses(2)
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("listen: {clients: %q, operations: %q}\nmodels:\n- name: %s\n  engines_from: {kubernetes: {inference_pool: pool, kubeconfig: %q}}\nlog: {format: text}\n", clients, free[0], demo.Model, k.c.kubeconfig)
	path := k.Path("pool.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := k.Start("gateway-pool", "serve", "-c", path); err != nil {
		t.Fatal(err)
	}
	engines := func() (names []string, s router.Stats) {
		resp, err := http.Get("http://" + free[0] + "/ready")
		if err != nil {
			return nil, s
		}
		defer resp.Body.Close()
		_ = json.NewDecoder(resp.Body).Decode(&s)
		for _, e := range s.Engines {
			names = append(names, e.Name)
		}
		slices.Sort(names)
		return names, s
	}
	until(t, "it says that there are no InferencePools", func() bool { _, s := engines(); return len(s.Sources) == 1 })
	object := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	k.c.create("apiextensions.k8s.io", "customresourcedefinitions", "v1", "CustomResourceDefinition", "inferencepools.inference.networking.k8s.io", map[string]any{"spec": map[string]any{
		"group": "inference.networking.k8s.io", "scope": "Namespaced", "names": map[string]any{"plural": "inferencepools", "singular": "inferencepool", "kind": "InferencePool", "listKind": "InferencePoolList"},
		"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"spec": object}}}}},
	}})
	for i, name := range []string{"e1", "e2"} {
		at := fmt.Sprintf("127.77.1.%d", i+1)
		if err := k.Start(name, "mock-engine", "--name", name, "--role", "both", "--model", demo.Model, "--listen", at+":"+k.port); err != nil {
			t.Fatal(err)
		}
		k.c.createPod(name, at, map[string]string{"app": name, "pool": "yes"})
		k.c.setPod(name, at, true)
	}
	port, err := strconv.ParseInt(k.port, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	k.c.create("inference.networking.k8s.io", "inferencepools", "v1", "InferencePool", "pool", map[string]any{"spec": map[string]any{
		"selector": map[string]any{"matchLabels": map[string]any{"app": "e1"}}, "targetPorts": []any{map[string]any{"number": port}}}})
	is := func(want ...string) func() bool {
		return func() bool { got, s := engines(); return slices.Equal(got, want) && s.Ready && len(s.Sources) == 0 }
	}
	until(t, "e1 is the engine", is("e1"))
	patch := func(text string) {
		t.Helper()
		if _, err := k.c.of("inference.networking.k8s.io", "inferencepools").Patch(t.Context(), "pool", types.MergePatchType, []byte(text), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"spec":{"selector":{"matchLabels":{"app":null,"pool":"yes"}}}}`)
	until(t, "both are engines", is("e1", "e2"))
	if _, got, err := complete("http://"+clients, kubeBody); err != nil || got != k.want {
		t.Errorf("got %q, %v; want %q", got, err, k.want)
	}
	if err := k.c.of("inference.networking.k8s.io", "inferencepools").Delete(t.Context(), "pool", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "it says that the pool is gone, and keeps its engines", func() bool {
		got, s := engines()
		return slices.Equal(got, []string{"e1", "e2"}) && s.Ready && len(s.Sources) == 1
	})
}

func (k *kubeFleet) ip(name string) string {
	i := slices.IndexFunc(k.Engines, func(e demo.Engine) bool { return e.Name == name })
	host, _, _ := net.SplitHostPort(k.Engines[i].Address)
	return host
}

// add makes a pod and starts the process behind it.
func (k *kubeFleet) add(name string) {
	k.t.Helper()
	k.c.createPod(name, k.ip(name), k.labels[name])
	i := slices.IndexFunc(k.Engines, func(e demo.Engine) bool { return e.Name == name })
	if err := k.StartEngine(k.Engines[i], k.agents, "--transport", "tcp"); err != nil {
		k.t.Fatal(err)
	}
	k.started[name] = k.Processes[len(k.Processes)-1]
}

// ready has a pod be ready once its process answers.
func (k *kubeFleet) ready(name string) {
	k.t.Helper()
	until(k.t, name+" answers", func() bool {
		return k.Fetch(k.t.Context(), "http://"+net.JoinHostPort(k.ip(name), k.port)+"/health", nil) == nil
	})
	k.c.setPod(name, k.ip(name), true)
}

// signal tells the process behind a pod to end, as a kubelet does.
func (k *kubeFleet) signal(name string) {
	k.t.Helper()
	if err := k.started[name].Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		k.t.Fatal(err)
	}
}

// state is the body of /ready, whatever its status.
func (k *kubeFleet) state() (s router.Stats, err error) {
	resp, err := http.Get(k.Operations + "/ready")
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(resp.Body).Decode(&s)
}

func (k *kubeFleet) stateOf(s router.Stats, name string) string {
	for _, e := range s.Engines {
		if e.Name == name {
			return e.State
		}
	}
	return "gone"
}

func (k *kubeFleet) waitFor(what string, ok func(router.Stats) bool) {
	k.t.Helper()
	var last router.Stats
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if s, err := k.state(); err == nil {
			if ok(s) {
				return
			}
			last = s
		}
	}
	b, _ := json.MarshalIndent(last, "", " ")
	k.t.Fatalf("never: %s\n%s", what, b)
}

// served returns how many requests the two engines have served together.
func (k *kubeFleet) served(p, d string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pairs[p+" "+d]
}

// load has clients ask until ctx ends, each answer compared, none asked again.
func (k *kubeFleet) load(ctx context.Context, clients int) *sync.WaitGroup {
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for ctx.Err() == nil {
				k.sent.Add(1)
				if err := k.ask(); err != nil && k.failed.Add(1) < 5 {
					k.t.Errorf("request: %v", err)
				}
				time.Sleep(2 * time.Millisecond) // the other processes of the test need the machine as well
			}
		})
	}
	return &running
}

func (k *kubeFleet) ask() error {
	resp, err := http.Post(k.Client+"/v1/completions", "application/json", bytes.NewReader([]byte(kubeBody)))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if got := firstText(string(b)); resp.StatusCode != http.StatusOK || got != k.want {
		return fmt.Errorf("status %d: %s; want %q", resp.StatusCode, b, k.want)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pairs[resp.Header.Get("X-Pdrouter-Prefill")+" "+resp.Header.Get("X-Pdrouter-Decode")]++
	return nil
}
