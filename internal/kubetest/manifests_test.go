package kubetest

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

const folder = "../../configs/kubernetes"

func loaded(t *testing.T) *manifests {
	t.Helper()
	m, err := load(folder)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// build returns the path of pdrouter, built from this tree.
func build(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "pdrouter")
	cmd := exec.Command("go", "build", "-o", bin, "./cmd/pdrouter")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

// find returns the element with a name.
func find[T any](t *testing.T, list []T, name string, nameOf func(*T) string) *T {
	t.Helper()
	for i := range list {
		if nameOf(&list[i]) == name {
			return &list[i]
		}
	}
	t.Fatalf("there is no %T named %s", *new(T), name)
	return nil
}

func (m *manifests) deployment(t *testing.T, name string) *appsv1.Deployment {
	return find(t, m.deployments, name, func(d *appsv1.Deployment) string { return d.Name })
}

func TestStrictness(t *testing.T) {
	for text, want := range map[string]string{
		"apiVersion: v1\nkind: Service\nspec: {portz: []}":          "portz",
		"apiVersion: v1\nkind: Service\nkind: Service":              "already set",
		"apiVersion: v1\nkind: Pod":                                 "is not known here",
		"apiVersion: v1\nkind: Service\nspec: {ports: [{port: a}]}": "port",
	} {
		if err := new(manifests).add([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want an error with %q", text, err, want)
		}
	}
}

// TestGateway: two replicas, one of which always stays, and probes that exist.
func TestGateway(t *testing.T) {
	m := loaded(t)
	d := m.deployment(t, "pdrouter")
	if d.Spec.Replicas == nil || *d.Spec.Replicas != 2 {
		t.Error("want two replicas")
	}
	c := &d.Spec.Template.Spec.Containers[0]
	for name, p := range map[string]*corev1.Probe{"/health": c.LivenessProbe, "/ready": c.ReadinessProbe} {
		if p == nil || p.HTTPGet == nil || p.HTTPGet.Path != name || p.HTTPGet.Port != intstr.FromString("operations") {
			t.Errorf("want a probe of %s on the operations port; got %+v", name, p)
		}
	}
	if len(m.budgets) != 1 || !matches(m.budgets[0].Spec.Selector, d) {
		t.Error("want a disruption budget for the gateway's pods")
	}
	account := d.Spec.Template.Spec.ServiceAccountName
	find(t, m.accounts, account, func(a *corev1.ServiceAccount) string { return a.Name })
}

// TestPodsAreRestricted: what the restricted Pod Security Standard asks for, a read-only root, and bounds.
func TestPodsAreRestricted(t *testing.T) {
	for _, d := range loaded(t).deployments {
		pod := d.Spec.Template.Spec
		p := pod.SecurityContext
		if p == nil || p.RunAsNonRoot == nil || !*p.RunAsNonRoot || p.RunAsUser == nil || *p.RunAsUser == 0 || p.SeccompProfile == nil {
			t.Errorf("%s: pod security context %+v", d.Name, p)
		}
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
			t.Errorf("%s: mounts a token for the Kubernetes API", d.Name)
		}
		for _, c := range pod.Containers {
			s := c.SecurityContext
			switch {
			case s == nil, s.AllowPrivilegeEscalation == nil, *s.AllowPrivilegeEscalation, s.ReadOnlyRootFilesystem == nil, !*s.ReadOnlyRootFilesystem:
				t.Errorf("%s/%s: security context %+v", d.Name, c.Name, s)
			case s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}):
				t.Errorf("%s/%s: keeps capabilities", d.Name, c.Name)
			}
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s/%s: resources %+v", d.Name, c.Name, c.Resources)
			}
			if c.LivenessProbe == nil || c.ReadinessProbe == nil {
				t.Errorf("%s/%s: has no probes", d.Name, c.Name)
			}
			for _, e := range c.Env {
				if e.Value != "" {
					t.Errorf("%s/%s: environment %s has a value in place", d.Name, c.Name, e.Name)
				}
			}
		}
	}
}

// matches reports whether a selector selects the pods of a deployment.
func matches(s *metav1.LabelSelector, d *appsv1.Deployment) bool {
	if s == nil || len(s.MatchLabels) == 0 || len(s.MatchExpressions) > 0 {
		return false
	}
	for k, v := range s.MatchLabels {
		if d.Spec.Template.Labels[k] != v {
			return false
		}
	}
	return true
}

// ports returns the container ports of a deployment by name.
func ports(d *appsv1.Deployment) map[string]int32 {
	all := map[string]int32{}
	for _, c := range d.Spec.Template.Spec.Containers {
		for _, p := range c.Ports {
			all[p.Name] = p.ContainerPort
		}
	}
	return all
}

// TestSelectorsAndPorts: every selector of a Service or a policy selects pods that exist, and every port is theirs.
func TestSelectorsAndPorts(t *testing.T) {
	m := loaded(t)
	chosen := func(s *metav1.LabelSelector) (found []*appsv1.Deployment) {
		for i := range m.deployments {
			if matches(s, &m.deployments[i]) {
				found = append(found, &m.deployments[i])
			}
		}
		return found
	}
	for i := range m.deployments {
		if d := &m.deployments[i]; !matches(d.Spec.Selector, d) || len(chosen(d.Spec.Selector)) != 1 {
			t.Errorf("deployment %s: its selector does not select its pods alone", d.Name)
		}
	}
	has := func(d *appsv1.Deployment, p intstr.IntOrString) bool {
		if p.Type == intstr.String {
			_, ok := ports(d)[p.StrVal]
			return ok
		}
		return slices.Contains(slices.Collect(maps.Values(ports(d))), p.IntVal)
	}
	for _, s := range m.services {
		found := chosen(&metav1.LabelSelector{MatchLabels: s.Spec.Selector})
		if len(found) != 1 {
			t.Errorf("service %s selects %d deployments; want 1", s.Name, len(found))
			continue
		}
		for _, p := range s.Spec.Ports {
			if !has(found[0], p.TargetPort) {
				t.Errorf("service %s: port %s leads to %v, which %s does not have", s.Name, p.Name, p.TargetPort.String(), found[0].Name)
			}
		}
	}
	guarded := 0
	for _, n := range m.networks {
		for _, d := range chosen(&n.Spec.PodSelector) {
			guarded++
			for _, rule := range n.Spec.Ingress {
				if len(rule.From) == 0 || len(rule.Ports) == 0 {
					t.Errorf("network policy %s: a rule is open to all or on all ports", n.Name)
				}
				for _, p := range rule.Ports {
					if p.Port == nil || !has(d, *p.Port) {
						t.Errorf("network policy %s: %s has no port %v", n.Name, d.Name, p.Port)
					}
				}
			}
		}
	}
	if guarded != len(m.deployments) {
		t.Errorf("%d of %d deployments have a network policy", guarded, len(m.deployments))
	}
}

// gatewayConfig is what the test reads of the gateway's file; pdrouter validate reads all of it.
type gatewayConfig struct {
	Listen struct {
		Clients, Agents, Operations string
	}
	Metadata struct {
		Redis struct{ Address string }
	}
	Timeouts struct {
		PreStopDelay metav1.Duration `json:"pre_stop_delay"`
		Drain        metav1.Duration
	}
}

// TestGatewayConfig: pdrouter validate accepts the file in the ConfigMap, its listeners are the container's ports, it
// drains within the grace period, and Redis is where the Service is.
func TestGatewayConfig(t *testing.T) {
	m := loaded(t)
	d := m.deployment(t, "pdrouter")
	config := find(t, m.configs, "pdrouter", func(c *corev1.ConfigMap) string { return c.Name })
	var c gatewayConfig
	if err := yaml.Unmarshal([]byte(config.Data["pdrouter.yaml"]), &c); err != nil {
		t.Fatal(err)
	}
	for name, address := range map[string]string{"clients": c.Listen.Clients, "agents": c.Listen.Agents, "operations": c.Listen.Operations} {
		if want := "0.0.0.0:" + strconv.Itoa(int(ports(d)[name])); address != want {
			t.Errorf("listen.%s is %s; the container's port is %s", name, address, want)
		}
	}
	// Kubernetes takes a pod that ends out of the Service while the pod gets its signal: it is no failure if that takes seconds.
	if c.Timeouts.PreStopDelay.Seconds() < 5 {
		t.Errorf("timeouts.pre_stop_delay is %v: the Service still sends requests when the listener closes", c.Timeouts.PreStopDelay)
	}
	if l := d.Spec.Template.Spec.Containers[0].Lifecycle; l != nil {
		t.Errorf("the container has hooks, %+v; want timeouts.pre_stop_delay alone, in which the gateway says that it ends", l)
	}
	// Requests get the drain time, and what outlives them gets it again.
	all := c.Timeouts.PreStopDelay.Seconds() + 2*c.Timeouts.Drain.Seconds()
	if grace := d.Spec.Template.Spec.TerminationGracePeriodSeconds; grace == nil || float64(*grace) <= all {
		t.Errorf("pods are killed before they have drained: want more than %vs", all)
	}
	redis := find(t, m.services, "pdrouter-redis", func(s *corev1.Service) string { return s.Name })
	if want := redis.Name + ":" + strconv.Itoa(int(redis.Spec.Ports[0].Port)); c.Metadata.Redis.Address != want {
		t.Errorf("metadata.redis.address is %s; want %s", c.Metadata.Redis.Address, want)
	}

	bin := build(t)
	container := d.Spec.Template.Spec.Containers[0]
	root := mount(t, bin, m, d)
	args := []string{"check"}
	for _, a := range container.Args {
		args = append(args, strings.ReplaceAll(a, "/etc/pdrouter/", root+"/etc/pdrouter/"))
	}
	out, err := exec.Command(bin, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("pdrouter %q: %v\n%s", args, err, out)
	}
	if strings.Contains(string(out), "WARNING") {
		t.Errorf("pdrouter validate warns:\n%s", out)
	}
	for _, engine := range []string{"vllm-prefill-0", "decode-1", "(TLS)", "API keys", "signed"} {
		if !strings.Contains(string(out), engine) {
			t.Errorf("want %q in\n%s", engine, out)
		}
	}

	help, _ := exec.Command(bin, "serve", "-h").CombinedOutput()
	for _, a := range container.Args {
		if strings.HasPrefix(a, "-") && !regexp.MustCompile(`(?m)^\s+-`+regexp.QuoteMeta(strings.TrimLeft(a, "-"))+`\b`).Match(help) {
			t.Errorf("pdrouter serve has no flag %s:\n%s", a, help)
		}
	}
}

// mount lays the container's volumes out under a folder, each file of a Secret with real content, and returns it.
// Only what the Deployment mounts is there: a path that the configuration names and nobody mounts is missing.
func mount(t *testing.T, bin string, m *manifests, d *appsv1.Deployment) string {
	t.Helper()
	root := t.TempDir()
	secrets := makeSecrets(t, bin)
	for _, vm := range d.Spec.Template.Spec.Containers[0].VolumeMounts {
		if !vm.ReadOnly {
			t.Errorf("mount %s can be written to", vm.Name)
		}
		v := find(t, d.Spec.Template.Spec.Volumes, vm.Name, func(v *corev1.Volume) string { return v.Name })
		files := map[string]string{}
		mode := os.FileMode(0o644)
		switch {
		case v.ConfigMap != nil:
			for name, text := range find(t, m.configs, v.ConfigMap.Name, func(c *corev1.ConfigMap) string { return c.Name }).Data {
				files[name] = strings.ReplaceAll(text, "/etc/pdrouter/", root+"/etc/pdrouter/")
			}
		case v.Secret != nil:
			if v.Secret.DefaultMode == nil || *v.Secret.DefaultMode&0o007 != 0 {
				t.Errorf("volume %s: others can read the secret", v.Name)
				continue
			}
			mode = os.FileMode(*v.Secret.DefaultMode)
			for _, item := range v.Secret.Items {
				text, ok := secrets[v.Secret.SecretName+"/"+item.Key]
				if !ok {
					t.Errorf("volume %s: nobody is told how to make %s/%s", v.Name, v.Secret.SecretName, item.Key)
				}
				files[item.Path] = text
			}
		default:
			t.Errorf("volume %s is neither a ConfigMap nor a Secret", v.Name)
		}
		dir := filepath.Join(root, vm.MountPath)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}
