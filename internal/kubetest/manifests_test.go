package kubetest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"pdrouter/internal/kubesecrets"
)

var update = flag.Bool("update", false, "write deploy/manifests anew")

// variants are values that between them use every branch of the templates.
var variants = map[string]string{
	"default":     ``,
	"everything":  `{autoscaling: {enabled: true}, agents: {enabled: true}, podMonitor: {enabled: true, labels: {release: prometheus}}, prometheusRule: {enabled: true, labels: {release: prometheus}, runbook: "https://docs.example/runbook"}, dashboard: {enabled: true, annotations: {grafana_folder: LLM}}, fleet: {enabled: true, huggingFaceTokenSecret: hf}, rbac: {inferencePools: true}, image: {pullSecrets: [{name: x}]}, nodeSelector: {a: b}, tolerations: [{operator: Exists}], podAnnotations: {a: b}, service: {annotations: {a: b}}, extraConfig: {log: {level: debug}, limits: {recent: 10}}}`,
	"nothing":     `{redis: {enabled: false}, auth: {apiKeys: false}, networkPolicy: {enabled: false}, secrets: {create: false}, replicas: 1}`,
	"other redis": `{redis: {address: "redis.example:6379"}}`,
	"other name":  `{name: gw, secrets: {rotateEvery: ""}, serviceMonitor: {enabled: true, labels: {release: prometheus}}, fleet: {enabled: true}}`,
	"keda":        `{fleet: {enabled: true}, engineScaling: {kind: keda}}`,
	"hpa":         `{fleet: {enabled: true}, autoscaling: {enabled: true}, engineScaling: {kind: hpa, decode: {maxReplicas: 8}}}`,
}

func objects(t *testing.T, variant string) []runtime.Object {
	t.Helper()
	values, err := parse(variants[variant])
	if err != nil {
		t.Fatal(err)
	}
	texts, err := render(values)
	if err != nil {
		t.Fatal(err)
	}
	all, err := decode(texts)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// each runs a test with the objects of each variant.
func each(t *testing.T, test func(t *testing.T, all []runtime.Object)) {
	for _, variant := range slices.Sorted(maps.Keys(variants)) {
		t.Run(variant, func(t *testing.T) { test(t, objects(t, variant)) })
	}
}

// TestManifestsAreUpToDate: the plain manifests are what the chart makes.
func TestManifestsAreUpToDate(t *testing.T) {
	values, err := manifestValues()
	if err != nil {
		t.Fatal(err)
	}
	texts, err := render(values)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"values.yaml": ""}
	for name, text := range texts {
		want[name] = plain(name, text)
		if *update {
			if err := os.WriteFile(filepath.Join(manifestFolder, name), []byte(want[name]), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := filepath.Glob(manifestFolder + "/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := want[name]; !ok || name != "values.yaml" && text != string(b) {
			t.Errorf("%s is not what the chart makes: make manifests", file)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("%v are missing: make manifests", slices.Sorted(maps.Keys(want)))
	}
}

// TestDecodingIsStrict has manifests with mistakes that an API server would take or drop in silence.
func TestDecodingIsStrict(t *testing.T) {
	for text, want := range map[string]string{
		"apiVersion: v1\nkind: Service\nspec: {portz: []}":          "portz",
		"apiVersion: v1\nkind: Service\nkind: Service":              "already set",
		"apiVersion: v1\nkind: Service\nspec: {ports: [{port: a}]}": "port",
	} {
		if _, err := decode(map[string]string{"x.yaml": text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want an error with %q", text, err, want)
		}
	}
}

// TestValuesAreChecked: the schema refuses values that the chart does not know, or that cannot be.
func TestValuesAreChecked(t *testing.T) {
	for _, text := range []string{
		`{replica: 3}`, `{replicas: two}`, `{redis: {enable: true}}`, `{models: []}`, `{image: {tag: 1.0}}`, `{service: {port: 70000}}`, `{fleet: {prefill: {replicas: -1}}}`,
		`{secrets: {renewal: 6}}`, `{name: "Not A Name"}`, `{engineScaling: {kind: vpa}}`, `{engineScaling: {kind: keda, prefill: {minReplicas: 0}}}`,
		`{secrets: {rotateEvery: monthly}}`, `{podMonitor: {enabled: true}, serviceMonitor: {enabled: true}}`, `{prometheusRule: {runbook: "a b"}}`, `{dashboard: {labels: {grafana_dashboard: 1}}}`, `{serviceMonitor: {interval: soon}}`,
	} {
		values, err := parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := render(values); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// TestEngineScaling: each role of the example engines is scaled by its own series of a metric that gateways have, and its StatefulSet has no number
// of its own beside it.
func TestEngineScaling(t *testing.T) {
	const metric = "pdrouter_scaling_desired_replicas"
	if b, err := os.ReadFile("../../docs/metrics.md"); err != nil || !strings.Contains(string(b), "`"+metric+"{model,role}`") {
		t.Error("gateways have no such metric", err)
	}
	for _, kind := range []string{"keda", "hpa"} {
		all := objects(t, kind)
		by := map[string]string{} // what scales each target
		for _, a := range of[autoscalingv2.HorizontalPodAutoscaler](all) {
			if a.Spec.ScaleTargetRef.Kind != "StatefulSet" {
				continue
			}
			m := a.Spec.Metrics[0].External
			by[a.Spec.ScaleTargetRef.Name] = fmt.Sprintf("%s %s %s down %d", m.Metric.Name, labels.Set(m.Metric.Selector.MatchLabels), m.Target.AverageValue, a.Spec.Behavior.ScaleDown.Policies[0].Value)
		}
		for _, u := range of[unstructured.Unstructured](all) {
			if u.GetKind() != "ScaledObject" {
				continue
			}
			name, _, _ := unstructured.NestedString(u.Object, "spec", "scaleTargetRef", "name")
			triggers, _, _ := unstructured.NestedSlice(u.Object, "spec", "triggers")
			metadata := triggers[0].(map[string]any)["metadata"].(map[string]any)
			by[name] = fmt.Sprint(metadata["query"], " ", metadata["threshold"])
		}
		want := map[string]string{}
		for _, s := range of[appsv1.StatefulSet](all) {
			if s.Spec.Replicas != nil {
				t.Errorf("%s: %s has %d replicas beside its autoscaler", kind, s.Name, *s.Spec.Replicas)
			}
			role := s.Spec.Template.Labels["pdrouter.dev/role"]
			if want[s.Name] = metric + " model=llama-3-8b,role=" + role + " 1 down 1"; kind == "keda" {
				want[s.Name] = "max(" + metric + `{model="llama-3-8b",role="` + role + `"}) 1`
			}
		}
		if !maps.Equal(by, want) || len(want) != 2 {
			t.Errorf("%s: scaled %v; want %v", kind, by, want)
		}
	}
}

// TestGateway: several replicas, one of which always stays, probes that exist, and no more rights than to watch pods.
func TestGateway(t *testing.T) {
	each(t, func(t *testing.T, all []runtime.Object) {
		d := gateway(t, all)
		scaled := slices.DeleteFunc(of[autoscalingv2.HorizontalPodAutoscaler](all), func(a *autoscalingv2.HorizontalPodAutoscaler) bool { return a.Spec.ScaleTargetRef.Kind != "Deployment" })
		switch {
		case len(scaled) > 0 && d.Spec.Replicas != nil:
			t.Error("replicas are set beside an autoscaler, which an upgrade would undo")
		case len(scaled) > 0 && (scaled[0].Spec.ScaleTargetRef.Name != d.Name || *scaled[0].Spec.MinReplicas < 2):
			t.Errorf("autoscaler %+v", scaled[0].Spec)
		case len(scaled) == 0 && d.Spec.Replicas == nil:
			t.Error("no replicas")
		}
		c := d.Spec.Template.Spec.Containers[0]
		for name, p := range map[string]*corev1.Probe{"/health": c.LivenessProbe, "/ready": c.ReadinessProbe} {
			if p == nil || p.HTTPGet == nil || p.HTTPGet.Path != name || p.HTTPGet.Port != intstr.FromString("operations") {
				t.Errorf("want a probe of %s on the operations port; got %+v", name, p)
			}
		}
		if b := of[policyv1.PodDisruptionBudget](all); len(b) != 1 || !selects(t, b[0].Spec.Selector, &d.Spec.Template) {
			t.Error("want a disruption budget for the gateway's pods")
		}
		if len(d.Spec.Template.Spec.TopologySpreadConstraints) != 2 {
			t.Error("pods are not spread over nodes and zones")
		}
		account := d.Spec.Template.Spec.ServiceAccountName
		bound := false
		for _, b := range of[rbacv1.RoleBinding](all) {
			if b.Subjects[0].Name != account {
				continue
			}
			bound = true
			for _, r := range of[rbacv1.Role](all) {
				if r.Name != b.RoleRef.Name {
					continue
				}
				for _, rule := range r.Rules {
					if !slices.Equal(rule.Verbs, []string{"get", "list", "watch"}) || !slices.Contains([]string{"pods", "inferencepools"}, rule.Resources[0]) || len(rule.Resources) != 1 {
						t.Errorf("the gateway may %+v", rule)
					}
				}
			}
		}
		if !bound || len(of[rbacv1.ClusterRole](all)) > 0 {
			t.Error("want a Role for the gateway, and none of the cluster")
		}
	})
}

func gateway(t *testing.T, all []runtime.Object) *appsv1.Deployment {
	t.Helper()
	for _, d := range of[appsv1.Deployment](all) {
		if d.Spec.Template.Spec.Containers[0].Name == "pdrouter" {
			return d
		}
	}
	t.Fatal("there is no gateway")
	return nil
}

// templates returns every pod template, by kind and name.
func templates(all []runtime.Object) map[string]*corev1.PodTemplateSpec {
	out := map[string]*corev1.PodTemplateSpec{}
	for _, d := range of[appsv1.Deployment](all) {
		out["Deployment "+d.Name] = &d.Spec.Template
	}
	for _, s := range of[appsv1.StatefulSet](all) {
		out["StatefulSet "+s.Name] = &s.Spec.Template
	}
	for _, j := range of[batchv1.Job](all) {
		out["Job "+j.Name] = &j.Spec.Template
	}
	for _, j := range of[batchv1.CronJob](all) {
		out["CronJob "+j.Name] = &j.Spec.JobTemplate.Spec.Template
	}
	return out
}

// TestPodsAreRestricted: what the restricted Pod Security Standard asks for, bounds, and a token for the API only where it is used.
func TestPodsAreRestricted(t *testing.T) {
	each(t, func(t *testing.T, all []runtime.Object) {
		for name, template := range templates(all) {
			pod := template.Spec
			p := pod.SecurityContext
			if p == nil || p.RunAsNonRoot == nil || !*p.RunAsNonRoot || p.RunAsUser == nil || *p.RunAsUser == 0 || p.SeccompProfile == nil {
				t.Errorf("%s: pod security context %+v", name, p)
			}
			uses := strings.Contains(pod.Containers[0].Image, "pdrouter") // the gateway, and what makes its Secrets
			if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken != uses {
				t.Errorf("%s: mounts a token for the Kubernetes API: %v; want %t", name, pod.AutomountServiceAccountToken, uses)
			}
			for _, c := range pod.Containers {
				s, engine := c.SecurityContext, c.Name == "vllm" // which writes caches of compiled kernels
				switch {
				case s == nil, s.AllowPrivilegeEscalation == nil, *s.AllowPrivilegeEscalation, !engine && (s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem):
					t.Errorf("%s/%s: security context %+v", name, c.Name, s)
				case s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}):
					t.Errorf("%s/%s: keeps capabilities", name, c.Name)
				}
				if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
					t.Errorf("%s/%s: resources %+v", name, c.Name, c.Resources)
				}
				if !strings.Contains(name, "Job") && (c.LivenessProbe == nil || c.ReadinessProbe == nil) {
					t.Errorf("%s/%s: has no probes", name, c.Name)
				}
			}
		}
	})
}

func selects(t *testing.T, s *metav1.LabelSelector, template *corev1.PodTemplateSpec) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return !selector.Empty() && selector.Matches(labels.Set(template.Labels))
}

// TestSelectorsAndPorts: every selector of a workload, a Service or a policy selects pods that exist, and every port is theirs.
func TestSelectorsAndPorts(t *testing.T) {
	each(t, func(t *testing.T, all []runtime.Object) {
		pods := templates(all)
		chosen := func(s *metav1.LabelSelector) (names []string) {
			for name, template := range pods {
				if selects(t, s, template) {
					names = append(names, name)
				}
			}
			return names
		}
		has := func(name string, p intstr.IntOrString) bool {
			for _, c := range pods[name].Spec.Containers {
				for _, own := range c.Ports {
					if own.Name == p.StrVal || p.Type == intstr.Int && own.ContainerPort == p.IntVal {
						return true
					}
				}
			}
			return false
		}
		for _, d := range of[appsv1.Deployment](all) {
			if got := chosen(d.Spec.Selector); !slices.Equal(got, []string{"Deployment " + d.Name}) {
				t.Errorf("Deployment %s selects %v", d.Name, got)
			}
		}
		for _, s := range of[appsv1.StatefulSet](all) {
			if got := chosen(s.Spec.Selector); !slices.Equal(got, []string{"StatefulSet " + s.Name}) {
				t.Errorf("StatefulSet %s selects %v", s.Name, got)
			}
		}
		for _, s := range of[corev1.Service](all) {
			got := chosen(&metav1.LabelSelector{MatchLabels: s.Spec.Selector})
			if len(got) != 1 {
				t.Errorf("Service %s selects %v; want one workload", s.Name, got)
				continue
			}
			for _, p := range s.Spec.Ports {
				if !has(got[0], p.TargetPort) {
					t.Errorf("Service %s: port %s leads to %v, which %s does not have", s.Name, p.Name, p.TargetPort.String(), got[0])
				}
			}
		}
		policies := of[networkingv1.NetworkPolicy](all)
		guarded := map[string]bool{}
		for _, n := range policies {
			if !slices.Equal(n.Spec.PolicyTypes, []networkingv1.PolicyType{"Ingress", "Egress"}) {
				t.Errorf("NetworkPolicy %s is of %v", n.Name, n.Spec.PolicyTypes)
			}
			for _, name := range chosen(&n.Spec.PodSelector) {
				guarded[name] = true
				for _, rule := range n.Spec.Ingress {
					for _, p := range rule.Ports {
						if !has(name, *p.Port) {
							t.Errorf("NetworkPolicy %s: port %v, which %s does not have", n.Name, p.Port.String(), name)
						}
					}
				}
			}
		}
		for name := range pods {
			if len(policies) > 0 && !guarded[name] && !strings.Contains(name, "Job") {
				t.Errorf("no NetworkPolicy guards %s", name)
			}
		}
		for _, m := range of[unstructured.Unstructured](all) {
			match, _, _ := unstructured.NestedStringMap(m.Object, "spec", "selector", "matchLabels")
			switch m.GetKind() {
			case "ScaledObject": // TestEngineScaling
			case "PrometheusRule": // TestAlertsAndDashboard
			case "PodMonitor":
				if got := chosen(&metav1.LabelSelector{MatchLabels: match}); !slices.Equal(got, []string{"Deployment " + gateway(t, all).Name}) || !has(got[0], intstr.FromString(scrapedPort(m, "podMetricsEndpoints"))) {
					t.Errorf("PodMonitor selects %v", got)
				}
			case "ServiceMonitor":
				var got []string
				for _, s := range of[corev1.Service](all) {
					if labels.SelectorFromSet(match).Matches(labels.Set(s.Labels)) {
						got = append(got, s.Name+" "+s.Spec.Ports[0].Name)
					}
				}
				if want := gateway(t, all).Name + "-gateways " + scrapedPort(m, "endpoints"); !slices.Equal(got, []string{want}) {
					t.Errorf("ServiceMonitor selects %v; want %s alone", got, want)
				}
			default:
				t.Errorf("%s is no kind of Kubernetes", m.GetKind())
			}
		}
	})
}

// scrapedPort is the port that a monitor names in its first endpoint.
func scrapedPort(m *unstructured.Unstructured, endpoints string) string {
	list, _, _ := unstructured.NestedSlice(m.Object, "spec", endpoints)
	port, _ := list[0].(map[string]any)["port"].(string)
	return port
}

// TestAlertsAndDashboard: the chart has the alerts and the dashboard that are made from the table of metrics, whole and not changed, but for where
// the runbook is.
func TestAlertsAndDashboard(t *testing.T) {
	read := func(path string) any {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := yaml.Unmarshal(b, &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	all := objects(t, "everything")
	rules := of[unstructured.Unstructured](all)
	rules = slices.DeleteFunc(rules, func(u *unstructured.Unstructured) bool { return u.GetKind() != "PrometheusRule" })
	if len(rules) != 1 || rules[0].GetLabels()["release"] != "prometheus" {
		t.Fatalf("%d PrometheusRules, or not the labels that were asked for", len(rules))
	}
	b, err := json.Marshal(rules[0].Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	var spec any
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(b), "https://docs.example/runbook#", "docs/runbook.md#")), &spec); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(spec, read("../../deploy/prometheus/alerts.yaml")) {
		t.Errorf("the alerts are others than deploy/prometheus/alerts.yaml:\n%s", b)
	}
	if n := strings.Count(string(b), "https://docs.example/runbook#pdrouter"); n == 0 || n != strings.Count(string(b), `"alert"`) {
		t.Errorf("%d alerts link to the runbook that was asked for", n)
	}
	maps := slices.DeleteFunc(of[corev1.ConfigMap](all), func(c *corev1.ConfigMap) bool { return c.Name != "pdrouter-dashboard" })
	if len(maps) != 1 || maps[0].Labels["grafana_dashboard"] != "1" || maps[0].Annotations["grafana_folder"] != "LLM" {
		t.Fatalf("%d ConfigMaps with the dashboard, or not for the sidecar", len(maps))
	}
	text := maps[0].Data["pdrouter.json"]
	var dashboard any
	if err := json.Unmarshal([]byte(text), &dashboard); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(dashboard, read("../../deploy/grafana/pdrouter.json")) {
		t.Error("the dashboard is another than deploy/grafana/pdrouter.json")
	}
	// kubectl apply keeps a copy of the object in an annotation, which may have 256 KiB.
	if n, err := json.Marshal(text); err != nil || len(n) > 240<<10 {
		t.Errorf("the dashboard has %d bytes: too many for kubectl apply", len(n))
	}
}

// secrets has the Secrets that the Job makes.
type secrets map[string]kubesecrets.Data

func (s secrets) Get(_ context.Context, name string) (kubesecrets.Data, error) { return s[name], nil }

func (s secrets) Create(_ context.Context, name string, d kubesecrets.Data) error {
	s[name] = d
	return nil
}

func (s secrets) Replace(_ context.Context, name string, _, d kubesecrets.Data) error {
	s[name] = d
	return nil
}

// TestGatewayTakesItsConfiguration runs pdrouter validate on what the gateway's container gets: its ConfigMap, and the Secrets that the Job
// makes. A path that the configuration names and that nothing mounts is missing there.
func TestGatewayTakesItsConfiguration(t *testing.T) {
	bin := build(t)
	each(t, func(t *testing.T, all []runtime.Object) {
		d := gateway(t, all)
		made := secrets{}
		if _, err := kubesecrets.Make(t.Context(), made, d.Name, namespace, kubesecrets.Rotation{Now: true}, time.Now()); err != nil {
			t.Fatal(err)
		}
		root := t.TempDir()
		for _, vm := range d.Spec.Template.Spec.Containers[0].VolumeMounts {
			if !vm.ReadOnly {
				t.Errorf("mount %s can be written to", vm.Name)
			}
			i := slices.IndexFunc(d.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == vm.Name })
			v := d.Spec.Template.Spec.Volumes[i]
			files, mode := map[string]string{}, os.FileMode(0o644)
			if v.ConfigMap != nil {
				for _, c := range of[corev1.ConfigMap](all) {
					if c.Name == v.ConfigMap.Name {
						for name, text := range c.Data {
							files[name] = strings.ReplaceAll(text, "/etc/pdrouter/", root+"/etc/pdrouter/")
						}
					}
				}
			} else {
				mode = os.FileMode(*v.Secret.DefaultMode)
				if mode&0o007 != 0 {
					t.Errorf("volume %s: others can read the secret", v.Name)
				}
				items := v.Secret.Items
				if items == nil { // all that it holds
					for key := range made[v.Secret.SecretName] {
						items = append(items, corev1.KeyToPath{Key: key, Path: key})
					}
				}
				for _, item := range items {
					b, ok := made[v.Secret.SecretName][item.Key]
					if !ok {
						t.Errorf("volume %s: nothing makes %s/%s", v.Name, v.Secret.SecretName, item.Key)
					}
					files[item.Path] = string(b)
				}
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
		args := []string{"validate"}
		for _, a := range d.Spec.Template.Spec.Containers[0].Args {
			args = append(args, strings.ReplaceAll(a, "/etc/pdrouter/", root+"/etc/pdrouter/"))
		}
		out, err := exec.Command(bin, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("pdrouter %q: %v\n%s", args, err, out)
		}
		if open := slices.ContainsFunc(of[corev1.ConfigMap](all), func(c *corev1.ConfigMap) bool {
			return !strings.Contains(c.Data["pdrouter.yaml"], "api_keys_file") && c.Name == d.Name
		}); strings.Contains(string(out), "WARNING") && !open {
			t.Errorf("pdrouter validate warns:\n%s", out)
		}
		if !strings.Contains(string(out), "pods of Kubernetes, preset pdrouter") {
			t.Errorf("no pods in\n%s", out)
		}
		// The Job may make every Secret, and no other.
		for _, j := range of[batchv1.Job](all) {
			want := slices.Sorted(maps.Keys(made))
			for _, r := range of[rbacv1.Role](all) {
				if r.Name == j.Spec.Template.Spec.ServiceAccountName {
					if got := slices.Sorted(slices.Values(r.Rules[1].ResourceNames)); !slices.Equal(got, want) || !slices.Equal(r.Rules[0].Verbs, []string{"create"}) {
						t.Errorf("the Job may renew %v; want %v", got, want)
					}
				}
			}
			command := j.Spec.Template.Spec.Containers[0].Command
			if out, err := exec.Command(bin, append(command[1:], "--kubeconfig", "/nowhere")...).CombinedOutput(); err == nil || !strings.Contains(string(out), "/nowhere") {
				t.Errorf("pdrouter %q: %v, %s", command[1:], err, out)
			}
		}
	})
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

// TestFleetFitsTheGateway: the example's engines have the labels and ports that the default configuration looks for, and ask the gateways
// that exist before they end.
func TestFleetFitsTheGateway(t *testing.T) {
	for _, variant := range []string{"everything", "other name"} {
		all := objects(t, variant)
		sets := of[appsv1.StatefulSet](all)
		if len(sets) != 2 {
			t.Fatalf("%d StatefulSets", len(sets))
		}
		for _, s := range sets {
			l, pod := s.Spec.Template.Labels, s.Spec.Template.Spec
			role := l["pdrouter.dev/role"]
			if !strings.HasSuffix(s.Name, "-"+role) || role == "" || l["pdrouter.dev/model"] != "llama-3-8b" || l["pdrouter.dev/revision"] == "" {
				t.Errorf("%s has labels %v", s.Name, l)
			}
			c := pod.Containers[0]
			ports := map[string]int32{}
			for _, p := range c.Ports {
				ports[p.Name] = p.ContainerPort
			}
			if ports["http"] != 8000 || ports["side-channel"] != 5600 {
				t.Errorf("%s has ports %v", s.Name, ports)
			}
			hook := c.Lifecycle.PreStop.Exec.Command[2]
			asked := strings.Fields(hook)[2]
			if !slices.ContainsFunc(of[corev1.Service](all), func(s *corev1.Service) bool {
				return s.Name == asked && s.Spec.ClusterIP == "None" && s.Spec.PublishNotReadyAddresses && fmt.Sprint(s.Spec.Ports[0].Port) == strings.Fields(hook)[3]
			}) {
				t.Errorf("%s asks %q", s.Name, hook)
			}
			if *pod.TerminationGracePeriodSeconds <= 90 {
				t.Errorf("%s ends before its hook", s.Name)
			}
		}
	}
}
