//go:build e2e

package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"

	"pdrouter/internal/demo"
	"pdrouter/internal/proc"
)

// cluster is a real kube-apiserver with its etcd. No kubelet runs: the test writes the status of pods, and runs the processes behind them.
type cluster struct {
	t             *testing.T
	dir, address  string
	etcd, server  *proc.Process
	etcdAddress   string
	admin         dynamic.Interface
	namespace     string
	kubeconfig    string // of the gateway's user, who may do what the Role of the chart says
	serverStarted int
}

const kubeDeps = "../../.deps/kube"

func startCluster(t *testing.T) *cluster {
	c := &cluster{t: t, dir: t.TempDir(), namespace: "llm"}
	free, err := demo.FreeAddresses(3)
	c.must(err)
	c.address, c.etcdAddress = free[0], "http://"+free[1]
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	c.must(err)
	c.write("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	c.write("tokens.csv", "admin-token,admin,1,system:masters\ngateway-token,gateway,2\n")
	c.kubeconfig = c.write("kubeconfig", fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: k, cluster: {server: "https://%s", insecure-skip-tls-verify: true}}],
  users: [{name: u, user: {token: gateway-token}}], contexts: [{name: c, context: {cluster: k, user: u, namespace: %s}}]}`, c.address, c.namespace))
	c.etcd = c.run("etcd", "etcd", "--data-dir", filepath.Join(c.dir, "etcd"), "--listen-client-urls", c.etcdAddress, "--advertise-client-urls", c.etcdAddress,
		"--listen-peer-urls", "http://"+free[2], "--unsafe-no-fsync")
	c.startServer()
	c.admin, err = dynamic.NewForConfig(&restclient.Config{Host: "https://" + c.address, BearerToken: "admin-token", TLSClientConfig: restclient.TLSClientConfig{Insecure: true}, QPS: 1000, Burst: 1000})
	c.must(err)
	c.waitServer()
	c.create("", "namespaces", "v1", "Namespace", c.namespace, nil)
	c.create("rbac.authorization.k8s.io", "roles", "v1", "Role", "gateway", map[string]any{"rules": []any{
		map[string]any{"apiGroups": []any{""}, "resources": []any{"pods"}, "verbs": []any{"get", "list", "watch"}},
		map[string]any{"apiGroups": []any{"inference.networking.k8s.io"}, "resources": []any{"inferencepools"}, "verbs": []any{"get", "list", "watch"}},
	}})
	c.create("rbac.authorization.k8s.io", "rolebindings", "v1", "RoleBinding", "gateway", map[string]any{
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gateway"},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "gateway"}},
	})
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) write(name, text string) string {
	path := filepath.Join(c.dir, name)
	c.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// run starts one of the programs of make e2e-kube, which ends with the test.
func (c *cluster) run(name, program string, args ...string) *proc.Process {
	c.t.Helper()
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	c.must(err)
	defer log.Close()
	cmd := exec.Command(filepath.Join(kubeDeps, program), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p, err := proc.Begin(name, cmd)
	c.must(err)
	c.t.Cleanup(func() { _ = cmd.Process.Kill(); <-p.Done })
	return p
}

// startServer starts the API server, again over the same etcd after it was killed.
func (c *cluster) startServer() {
	c.t.Helper()
	_, port, err := net.SplitHostPort(c.address)
	c.must(err)
	c.serverStarted++
	c.server = c.run(fmt.Sprintf("kube-apiserver-%d", c.serverStarted), "kube-apiserver", "--etcd-servers", c.etcdAddress, "--secure-port", port, "--bind-address=127.0.0.1",
		"--cert-dir", filepath.Join(c.dir, "certs"), "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file", filepath.Join(c.dir, "sa.key"),
		"--service-account-signing-key-file", filepath.Join(c.dir, "sa.key"), "--token-auth-file", filepath.Join(c.dir, "tokens.csv"), "--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.0.0.0/24", "--disable-admission-plugins=ServiceAccount")
}

func (c *cluster) waitServer() {
	c.t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err := c.of("", "namespaces").Get(ctx, "default", metav1.GetOptions{})
		cancel()
		if err == nil {
			return
		}
		if ended, how := c.server.Ended(); ended || time.Now().After(end) {
			b, _ := os.ReadFile(filepath.Join(c.dir, c.server.Name+".log"))
			c.t.Fatalf("kube-apiserver is not ready: %v; it ended: %v\n%s", err, how, b[max(0, len(b)-2000):])
		}
	}
}

func (c *cluster) of(group, resource string) dynamic.ResourceInterface {
	r := c.admin.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource})
	if resource == "namespaces" || resource == "customresourcedefinitions" {
		return r
	}
	return r.Namespace(c.namespace)
}

// create makes an object; members are those beside its metadata.
func (c *cluster) create(group, resource, version, kind, name string, members map[string]any) {
	c.t.Helper()
	if group != "" {
		version = group + "/" + version
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": name}}}
	for k, v := range members {
		u.Object[k] = v
	}
	if resource == "customresourcedefinitions" { // else groups of *.k8s.io are refused
		u.SetAnnotations(map[string]string{"api-approved.kubernetes.io": "unapproved, for a test"})
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := c.of(group, resource).Create(c.t.Context(), u, metav1.CreateOptions{})
		if err == nil {
			return
		}
		if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) || time.Now().After(end) { // what was just defined is not served at once
			c.t.Fatal(err)
		}
	}
}

// createPod makes a pod with an address, as a kubelet would; it is not ready.
func (c *cluster) createPod(name, ip string, labels map[string]string) {
	c.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"nodeName": "node", "containers": []any{map[string]any{"name": "engine", "image": "engine"}}}}}
	u.SetLabels(labels)
	_, err := c.of("", "pods").Create(c.t.Context(), u, metav1.CreateOptions{})
	c.must(err)
	c.setPod(name, ip, false)
}

// setPod writes a pod's status.
func (c *cluster) setPod(name, ip string, ready bool) {
	c.t.Helper()
	status := map[bool]string{false: "False", true: "True"}[ready]
	_, err := c.of("", "pods").Patch(c.t.Context(), name, types.MergePatchType, fmt.Appendf(nil,
		`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}],"conditions":[{"type":"Ready","status":%q}]}}`, ip, ip, status), metav1.PatchOptions{}, "status")
	c.must(err)
}

// deletePod begins to delete a pod: it gets its deletion timestamp. finishPod ends it, as a kubelet does when the processes have ended.
func (c *cluster) deletePod(name string) {
	c.t.Helper()
	grace := int64(60)
	c.must(c.of("", "pods").Delete(c.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace}))
}

func (c *cluster) finishPod(name string) {
	c.t.Helper()
	c.must(c.of("", "pods").Delete(c.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
}

// apply makes every object of the plain manifests, which the API server checks, and returns the kinds.
func (c *cluster) apply(files ...string) map[string]int {
	c.t.Helper()
	kinds := map[string]int{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		c.must(err)
		for doc := range strings.SplitSeq(string(b), "\n---\n") {
			u := &unstructured.Unstructured{}
			c.must(utilyaml.Unmarshal([]byte(doc), &u.Object))
			kind := u.GroupVersionKind()
			plural := strings.ToLower(kind.Kind) + "s"
			if before, ok := strings.CutSuffix(plural, "ys"); ok {
				plural = before + "ies"
			}
			r := c.admin.Resource(kind.GroupVersion().WithResource(plural)).Namespace(c.namespace)
			if _, err := r.Create(c.t.Context(), u, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
				c.t.Errorf("%s: %s %s: %v", file, kind.Kind, u.GetName(), err)
			}
			kinds[kind.Kind]++
		}
	}
	return kinds
}
