package kubernetes

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// aPod returns a ready pod at an address.
func aPod(name, uid, ip string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name, "uid": uid},
		"status":   map[string]any{"phase": "Running", "podIP": ip},
	}}
	setReady(u, "True")
	return u
}

func setReady(u *unstructured.Unstructured, status string) {
	u.Object["status"].(map[string]any)["conditions"] = []any{map[string]any{"type": "ContainersReady", "status": "True"}, map[string]any{"type": "Ready", "status": status}}
}

func labelled(u *unstructured.Unstructured, labels map[string]string) *unstructured.Unstructured {
	u.SetLabels(labels)
	return u
}

// shown is endpoints in short: pod@address:port, and what is special about it.
func shown(all []Endpoint) []string {
	out := []string{}
	for _, e := range all {
		s := fmt.Sprintf("%s@%s", e.Pod, e.At)
		if e.Leaving {
			s += " leaving"
		}
		if e.Ranks > 1 {
			s += fmt.Sprintf(" %d/%d", e.Rank, e.Ranks)
		}
		if e.Zone+e.Revision != "" {
			s += " " + e.Zone + "," + e.Revision
		}
		out = append(out, s)
	}
	return out
}

// TestPodsBecomeEndpoints has one pod go through its life: it is used once it is ready, takes no more requests while it is not ready or is
// being deleted, and is gone with its object.
func TestPodsBecomeEndpoints(t *testing.T) {
	s := newPods("rev")
	s.setPorts([]int{8000})
	p := aPod("a", "1", "10.0.0.1")
	setReady(p, "False")
	want := func(step string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(append([]string{}, want...), shown(s.endpoints())); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
	}
	_ = s.Add(p)
	want("not ready yet")
	setReady(p, "True")
	_ = s.Update(p)
	want("ready", "a@10.0.0.1:8000")
	setReady(p, "Unknown") // its node does not answer
	_ = s.Update(p)
	want("not ready any more", "a@10.0.0.1:8000 leaving")
	setReady(p, "True")
	_ = s.Update(p)
	want("ready again", "a@10.0.0.1:8000")
	now := metav1.NewTime(time.Unix(1, 0))
	p.SetDeletionTimestamp(&now)
	_ = s.Update(p)
	want("being deleted", "a@10.0.0.1:8000 leaving")
	setReady(p, "False")
	_ = s.Update(p)
	want("being deleted, and not ready", "a@10.0.0.1:8000 leaving")
	next := aPod("a", "2", "10.0.0.2") // a StatefulSet's next pod, whose predecessor's end was not seen
	setReady(next, "False")
	_ = s.Replace([]any{next}, "7")
	want("another pod of that name, not ready yet")
	setReady(next, "True")
	_ = s.Update(next)
	want("ready", "a@10.0.0.2:8000")
	_ = s.Delete(next)
	want("gone")
}

// TestPodsThatAreNoEngines: what a selector matches and no request may be sent to.
func TestPodsThatAreNoEngines(t *testing.T) {
	s := newPods("rev")
	s.setPorts([]int{8000})
	ended := aPod("failed", "2", "10.0.0.2")
	ended.Object["status"].(map[string]any)["phase"] = "Failed"
	strange := aPod("strange", "7", "10.0.0.7")
	strange.Object["status"].(map[string]any)["conditions"] = []any{"Ready"}
	_ = s.Replace([]any{
		aPod("no-address", "1", ""), ended, strange,
		labelled(aPod("worker", "3", "10.0.0.3"), map[string]string{workerIndexLabel: "1"}),
		labelled(aPod("leader", "4", "10.0.0.4"), map[string]string{workerIndexLabel: "0"}),
		labelled(aPod("second", "5", "10.0.0.5"), map[string]string{podGroupIndexLabel: "1"}),
		labelled(aPod("v6", "6", "fd00::6"), map[string]string{podGroupIndexLabel: "0", zoneLabel: "z1", "rev": "r2"}),
	}, "1")
	if diff := cmp.Diff([]string{"leader@10.0.0.4:8000", "v6@[fd00::6]:8000 z1,r2"}, shown(s.endpoints())); diff != "" {
		t.Error("(-want +got):\n" + diff)
	}
	s.setPorts([]int{8000, 8001})
	_ = s.Replace([]any{aPod("a", "1", "10.0.0.1")}, "2")
	if diff := cmp.Diff([]string{"a@10.0.0.1:8000 0/2", "a@10.0.0.1:8001 1/2"}, shown(s.endpoints())); diff != "" {
		t.Error("two ports (-want +got):\n" + diff)
	}
	if at := s.endpoints()[1].At; at != netip.MustParseAddrPort("10.0.0.1:8001") {
		t.Error(at)
	}
}

// TestInferencePools has specs that say which pods are engines, and some that do not.
func TestInferencePools(t *testing.T) {
	spec := func(selector, ports any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"selector": map[string]any{"matchLabels": selector}, "targetPorts": ports}}}
	}
	labels := map[string]any{"app": "vllm"}
	for _, row := range []struct {
		name string
		of   *unstructured.Unstructured
		want []int // nil: a mistake
	}{
		{"two ports", spec(labels, []any{map[string]any{"number": int64(8000)}, map[string]any{"number": int64(8001)}}), []int{8000, 8001}},
		{"no labels", spec(map[string]any{}, []any{map[string]any{"number": int64(8000)}}), nil},
		{"labels that are no texts", spec(map[string]any{"app": int64(1)}, nil), nil},
		{"a port that is none", spec(labels, []any{map[string]any{"number": int64(0)}}), nil},
		{"a port without a number", spec(labels, []any{"8000"}), nil},
		{"ports that are no list", spec(labels, "8000"), nil},
		{"nothing", &unstructured.Unstructured{Object: map[string]any{}}, nil},
	} {
		got, err := readPool(row.of)
		if (err != nil) != (row.want == nil) || !cmp.Equal(got.ports, row.want) {
			t.Errorf("%s: %v, %v", row.name, got, err)
		}
	}
}
