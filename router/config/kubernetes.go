package config

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Kubernetes selects pods as the engines of a list. They are watched in one namespace. A pod is an engine once it is ready; it is drained
// while it is not ready or is being deleted, and removed when it is gone. Its engine has the pod's name.
type Kubernetes struct {
	// Preset says which labels tell the role and the workload of a pod: pdrouter, llm-d, disaggregated-set, leader-worker-set or aibrix
	// (docs/kubernetes.md has the labels). Default: none, then labels or inference_pool select the pods.
	Preset string `yaml:"preset"`
	// Workload is the value of the preset's label for the workload: the model's label with pdrouter, llm-d and aibrix, the name of the set
	// with disaggregated-set and leader-worker-set. Required with leader-worker-set, whose pods have no label for the role.
	Workload string `yaml:"workload"`
	// Labels are labels that the pods must have, besides those of the preset.
	Labels map[string]string `yaml:"labels"`
	// InferencePool names an object of inferencepools.inference.networking.k8s.io (v1) in the namespace. Its selector applies besides the
	// preset and the labels, and its target ports are the default of ports.
	InferencePool string `yaml:"inference_pool"`
	// Namespace is the pods' namespace. Default: that of the gateway's own pod.
	Namespace string `yaml:"namespace"`
	// Ports are the ports of the engine's OpenAI routes in each pod. Each port is an engine of its own, as each of a pod's data-parallel
	// ranks has one: with more than one port they are called <pod>.dp0, <pod>.dp1 and so on, and each further rank's side channel and
	// events use the next ports. Default 8000, or the target ports of inference_pool.
	Ports []int `yaml:"ports"`
	// Scheme is that of the engines' URLs: http or https. Default http.
	Scheme string `yaml:"scheme"`
	// RevisionLabel is the label with the engine's revision. Default: the preset's, or pdrouter.dev/revision.
	RevisionLabel string `yaml:"revision_label"`
	// Kubeconfig is a file that says where the API server is, and who asks. Default: the service account of the gateway's own pod.
	Kubeconfig string `yaml:"kubeconfig"`
}

// preset is how one system labels the pods of its workloads.
type preset struct {
	role     string              // the label; "" if there is none
	roles    map[string][]string // its values by the key of the list
	workload string
	revision string
}

const revisionLabel = "pdrouter.dev/revision"

// presets are the labels by the name of the preset. Sources: the labels that each project documents for its pods. That only the leader of a
// group of pods is an engine is no matter of a preset: internal/discovery/kubernetes leaves out the others.
func presets() map[string]preset {
	plain := map[string][]string{"prefill": {"prefill"}, "decode": {"decode"}, "engines": {"engine"}}
	return map[string]preset{
		"pdrouter":          {"pdrouter.dev/role", plain, "pdrouter.dev/model", revisionLabel},
		"llm-d":             {"llm-d.ai/role", map[string][]string{"prefill": {"prefill"}, "decode": {"decode"}, "engines": {"prefill-decode", "both"}}, "llm-d.ai/model", "disaggregatedset.x-k8s.io/revision"},
		"disaggregated-set": {"disaggregatedset.x-k8s.io/role", plain, "disaggregatedset.x-k8s.io/name", "disaggregatedset.x-k8s.io/revision"},
		"leader-worker-set": {"", nil, "leaderworkerset.sigs.k8s.io/name", revisionLabel},
		"aibrix":            {"role-name", plain, "model.aibrix.ai/name", revisionLabel},
	}
}

// On reports whether pods are selected.
func (k Kubernetes) On() bool { return k.Preset != "" || len(k.Labels) > 0 || k.InferencePool != "" }

func (k Kubernetes) isZero() bool {
	return !k.On() && k.Workload == "" && k.Namespace == "" && k.Ports == nil && k.Scheme == "" && k.RevisionLabel == "" && k.Kubeconfig == ""
}

// Selector returns the values that each label of a pod may have for the list with this key: prefill, decode or engines.
func (k Kubernetes) Selector(list string) map[string][]string {
	all := map[string][]string{}
	p := presets()[k.Preset]
	if p.role != "" {
		all[p.role] = p.roles[list]
	}
	if k.Workload != "" {
		all[p.workload] = []string{k.Workload}
	}
	for label, value := range k.Labels {
		all[label] = []string{value}
	}
	return all
}

// Revision returns the label with the engine's revision.
func (k Kubernetes) Revision() string {
	switch {
	case k.RevisionLabel != "":
		return k.RevisionLabel
	case k.Preset != "":
		return presets()[k.Preset].revision
	}
	return revisionLabel
}

var (
	labelKey   = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	labelValue = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
)

// validate checks what can be checked without an API server.
func (k Kubernetes) validate(key, connectorName string, dataParallel int, v *faults) {
	p, known := presets()[k.Preset]
	switch {
	case !k.On():
		v.add(key+".preset", "is empty", "preset, labels or inference_pool")
	case k.Preset != "" && !known:
		v.add(key+".preset", fmt.Sprintf("is %.100q", k.Preset), strings.Join(slices.Sorted(maps.Keys(presets())), ", ")+", or labels without a preset")
	case k.Workload != "" && k.Preset == "":
		v.add(key+".workload", "is set without a preset", "labels")
	case known && p.role == "" && k.Workload == "":
		v.add(key+".workload", "is empty", "the name of the set: its pods have no label for the role")
	}
	for _, f := range []struct {
		key, is, want string
		valid         *regexp.Regexp
	}{
		{"workload", k.Workload, "the value of a label", labelValue}, {"inference_pool", k.InferencePool, "a name", objectName},
		{"namespace", k.Namespace, "a name", objectName}, {"revision_label", k.RevisionLabel, "the name of a label", labelKey},
	} {
		if f.is != "" && !f.valid.MatchString(f.is) {
			v.add(key+"."+f.key, fmt.Sprintf("is %.100q", f.is), f.want+" as Kubernetes has them")
		}
	}
	for _, label := range slices.Sorted(maps.Keys(k.Labels)) {
		at := key + ".labels." + label
		switch {
		case !labelKey.MatchString(label) || k.Labels[label] != "" && !labelValue.MatchString(k.Labels[label]):
			v.add(at, fmt.Sprintf("is %.100q", k.Labels[label]), "a label and its value as Kubernetes has them")
		case known && label == p.role || k.Workload != "" && label == p.workload:
			v.add(at, "is set beside preset "+k.Preset, "one of them: the preset selects by this label")
		}
	}
	seen := map[int]bool{}
	for i, port := range k.Ports {
		if port < 1 || port > 65535 || seen[port] {
			v.add(fmt.Sprintf("%s.ports[%d]", key, i), fmt.Sprintf("is %d", port), "a port of its own from 1 to 65535")
		}
		seen[port] = true
	}
	switch {
	case len(k.Ports) > maxPodPorts:
		v.add(key+".ports", fmt.Sprintf("has %d ports", len(k.Ports)), fmt.Sprintf("at most %d", maxPodPorts))
	case len(k.Ports) > 1 && !ranked(connectorName):
		v.add(key+".ports", "has several ports", "one port for connector "+connectorName)
	case len(k.Ports) > 1 && dataParallel > 1:
		v.add(key+".ports", "has several ports beside data_parallel", "one of them: a port for each rank, or one port for all")
	}
	if k.Scheme != "" && k.Scheme != "http" && k.Scheme != "https" {
		v.add(key+".scheme", fmt.Sprintf("is %.20q", k.Scheme), "http or https")
	}
}

// maxPodPorts is the most engines of one pod.
const maxPodPorts = 64

// DefaultPort is where engines serve their OpenAI routes unless something says otherwise: vLLM's default.
const DefaultPort = 8000

// scheme returns the scheme of the URLs of the source's engines.
func (s Source) scheme() string {
	if u, err := url.Parse(s.DNS); s.DNS != "" && err == nil {
		return u.Scheme
	}
	if s.Kubernetes.Scheme != "" {
		return s.Kubernetes.Scheme
	}
	return "http"
}

// PodPort is one port of a pod, which an engine serves at.
type PodPort struct {
	Pod            string
	At             netip.AddrPort
	Rank, Ranks    int // which of the pod's ports it is, and how many there are
	Zone, Revision string
}

// PodEngine returns the entry of the engine at one port of a pod. What the pod's labels say of zone and revision goes before what the source
// says.
func (s Source) PodEngine(p PodPort) Engine {
	e := s.Engine("", p.At)
	e.Name = p.Pod
	if p.Ranks > 1 {
		e = e.rank(p.Rank)
	}
	if p.Zone != "" {
		e.Zone = p.Zone
	}
	if p.Revision != "" {
		e.Revision = p.Revision
	}
	return e
}
