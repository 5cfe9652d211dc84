package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/connector"
)

// TestPresetsSelectPods: which labels each preset asks for, by the key of the list.
func TestPresetsSelectPods(t *testing.T) {
	for _, row := range []struct {
		k    Kubernetes
		list string
		want map[string][]string
		rev  string
	}{
		{Kubernetes{Preset: "pdrouter", Workload: "llama"}, "prefill", map[string][]string{"pdrouter.dev/role": {"prefill"}, "pdrouter.dev/model": {"llama"}}, "pdrouter.dev/revision"},
		{Kubernetes{Preset: "llm-d", InferencePool: "p"}, "engines", map[string][]string{"llm-d.ai/role": {"prefill-decode", "both"}}, "disaggregatedset.x-k8s.io/revision"},
		{Kubernetes{Preset: "disaggregated-set", Workload: "s"}, "decode", map[string][]string{"disaggregatedset.x-k8s.io/role": {"decode"}, "disaggregatedset.x-k8s.io/name": {"s"}}, "disaggregatedset.x-k8s.io/revision"},
		{Kubernetes{Preset: "leader-worker-set", Workload: "llama-prefill"}, "prefill", map[string][]string{"leaderworkerset.sigs.k8s.io/name": {"llama-prefill"}}, "pdrouter.dev/revision"},
		{Kubernetes{Preset: "aibrix", Workload: "llama", Labels: map[string]string{"roleset-name": "r"}, RevisionLabel: "v"}, "decode", map[string][]string{"role-name": {"decode"}, "model.aibrix.ai/name": {"llama"}, "roleset-name": {"r"}}, "v"},
		{Kubernetes{Labels: map[string]string{"app": "vllm"}}, "decode", map[string][]string{"app": {"vllm"}}, "pdrouter.dev/revision"},
	} {
		var v faults
		if (Source{Kubernetes: row.k}).validate("x_from", connector.NamePull, &v); len(v) > 0 {
			t.Errorf("%+v: %v", row.k, v)
		}
		if diff := cmp.Diff(row.want, row.k.Selector(row.list)); diff != "" || row.k.Revision() != row.rev {
			t.Errorf("%+v: revision label %q (-want +got):\n%s", row.k, row.k.Revision(), diff)
		}
	}
}

// TestPodsMakeEngines: an engine has its pod's name and what the source says of each; one with ranks has the next ports for each.
func TestPodsMakeEngines(t *testing.T) {
	s := Source{Kubernetes: Kubernetes{Preset: "pdrouter", Scheme: "https", Ports: []int{8000, 8001}}, SideChannel: "{host}:5600", KVEvents: KVEvents{Endpoint: "tcp://{host}:5557"}, TensorParallel: 2,
		Revision: "r1", Placement: Placement{Zone: "here"}}
	for _, row := range []struct {
		at   PodPort
		want Engine
	}{
		{PodPort{Pod: "decode-0", At: netip.MustParseAddrPort("10.0.0.7:8000"), Ranks: 1},
			Engine{Name: "decode-0", URL: "https://10.0.0.7:8000", SideChannel: "10.0.0.7:5600", KVEvents: KVEvents{Endpoint: "tcp://10.0.0.7:5557"}, TensorParallel: 2, Revision: "r1", Placement: Placement{Zone: "here"}}},
		{PodPort{Pod: "decode-0", At: netip.MustParseAddrPort("[fd00::7]:8001"), Rank: 1, Ranks: 2, Zone: "there", Revision: "r2"},
			Engine{Name: "decode-0.dp1", URL: "https://[fd00::7]:8001", SideChannel: "[fd00::7]:5601", KVEvents: KVEvents{Endpoint: "tcp://[fd00::7]:5558"}, TensorParallel: 2, Revision: "r2", Placement: Placement{Zone: "there"}}},
	} {
		if diff := cmp.Diff(row.want, s.PodEngine(row.at)); diff != "" {
			t.Error("(-want +got):\n" + diff)
		}
	}
}

// TestKubernetesIsChecked has mistakes that can be seen without an API server.
func TestKubernetesIsChecked(t *testing.T) {
	preset := func(change func(*Source)) Source {
		s := Source{Kubernetes: Kubernetes{Preset: "pdrouter"}}
		change(&s)
		return s
	}
	for _, row := range []struct {
		connector, want string
		source          Source
	}{
		{connector.NamePull, "kubernetes.preset", Source{Kubernetes: Kubernetes{Namespace: "llm"}}},
		{connector.NamePull, "kubernetes.preset", Source{Kubernetes: Kubernetes{Preset: "helm"}}},
		{connector.NamePull, "kubernetes.workload", Source{Kubernetes: Kubernetes{Preset: "leader-worker-set"}}},
		{connector.NamePull, "kubernetes.workload", Source{Kubernetes: Kubernetes{Labels: map[string]string{"app": "x"}, Workload: "w"}}},
		{connector.NamePull, "kubernetes.workload", preset(func(s *Source) { s.Kubernetes.Workload = "meta-llama/Llama" })},
		{connector.NamePull, "kubernetes.labels.app", preset(func(s *Source) { s.Kubernetes.Labels = map[string]string{"app": "a,b"} })},
		{connector.NamePull, "kubernetes.labels.pdrouter.dev/role", preset(func(s *Source) { s.Kubernetes.Labels = map[string]string{"pdrouter.dev/role": "decode"} })},
		{connector.NamePull, "kubernetes.namespace", preset(func(s *Source) { s.Kubernetes.Namespace = "a/b" })},
		{connector.NamePull, "kubernetes.inference_pool", preset(func(s *Source) { s.Kubernetes.InferencePool = "a,b=c" })},
		{connector.NamePull, "kubernetes.revision_label", preset(func(s *Source) { s.Kubernetes.RevisionLabel = "a b" })},
		{connector.NamePull, "kubernetes.scheme", preset(func(s *Source) { s.Kubernetes.Scheme = "h2c" })},
		{connector.NamePull, "kubernetes.ports[1]", preset(func(s *Source) { s.Kubernetes.Ports = []int{8000, 8000} })},
		{connector.NamePull, "kubernetes.ports[0]", preset(func(s *Source) { s.Kubernetes.Ports = []int{70000} })},
		{connector.NameKVPlane, "kubernetes.ports", preset(func(s *Source) { s.Kubernetes.Ports = []int{8000, 8001} })},
		{connector.NamePull, "kubernetes.ports", preset(func(s *Source) { s.Kubernetes.Ports = []int{8000, 8001}; s.DataParallel = 2 })},
		{connector.NamePull, "kubernetes", preset(func(s *Source) { s.DNS = "http://p.svc" })},
		{connector.NamePull, "every", preset(func(s *Source) { s.Every = minEvery })},
		{connector.NamePull, "gone_after", preset(func(s *Source) { s.GoneAfter = minEvery })},
		{connector.NamePull, "side_channel", preset(func(s *Source) { s.SideChannel = "10.0.0.1:5600" })},
		{connector.NamePull, "revision", Source{File: "/f", Revision: "r"}},
	} {
		var v faults
		if row.source.validate("decode_from", row.connector, &v); len(v) != 1 || !strings.HasPrefix(v[0].Error(), "decode_from."+row.want+" ") {
			t.Errorf("%+v: %v; want a mistake of %s", row.source, v, row.want)
		}
	}
}
