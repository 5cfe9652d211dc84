package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestKVEventsMistakes names each mistake.
func TestKVEventsMistakes(t *testing.T) {
	at := func(name, endpoint, replays string, ranks int) Engine {
		return Engine{Name: name, URL: "http://10.0.0.1:8000", DataParallel: ranks, KVEvents: KVEvents{Endpoint: endpoint, ReplayEndpoint: replays}}
	}
	for _, row := range []struct {
		name    string
		engines []Engine
		from    Source
		want    []string
	}{
		{"good", []Engine{at("a", "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5567", 4), at("b", "tcp://*:5557", "tcp://b:5567", 0), at("c", "", "", 0), at("d", "tcp://[fd00::1]:5557", "", 0)}, Source{}, nil},
		{"forms", []Engine{at("a", "10.0.0.7:5557", "", 0), at("b", "tcp://:5557", "tcp://*:1", 0), at("c", "ipc:///tmp/a", "tcp://c:0", 0)}, Source{}, []string{
			`models[0].engines[0].kv_events.endpoint is "10.0.0.7:5557"; want tcp://host:port, such as tcp://10.0.0.7:5557`,
			`models[0].engines[1].kv_events.endpoint is "tcp://:5557"; want tcp://host:port, such as tcp://10.0.0.7:5557`,
			`models[0].engines[1].kv_events.replay_endpoint is "tcp://*:1"; want tcp://host:port, such as tcp://10.0.0.7:5557`,
			`models[0].engines[2].kv_events.endpoint is "ipc:///tmp/a"; want tcp://host:port, such as tcp://10.0.0.7:5557`,
			`models[0].engines[2].kv_events.replay_endpoint is "tcp://c:0"; want tcp://host:port, such as tcp://10.0.0.7:5557`}},
		{"replays alone", []Engine{at("a", "", "tcp://10.0.0.7:5558", 0)}, Source{}, []string{
			"models[0].engines[0].kv_events.endpoint is empty; want it beside replay_endpoint"}},
		{"ports of ranks", []Engine{at("a", "tcp://10.0.0.7:65533", "", 4)}, Source{}, []string{
			`models[0].engines[0].kv_events.endpoint is "tcp://10.0.0.7:65533"; want 4 ports from there on, one for each data-parallel rank`}},
		{"one endpoint of two", []Engine{at("a", "tcp://10.0.0.7:5557", "", 4), at("b", "tcp://10.0.0.7:5560", "", 0)}, Source{}, []string{
			`models[0].engines[1].kv_events.endpoint is "tcp://10.0.0.7:5560", which is, or has with its ranks, an endpoint that stands before it; want one of its own`}},
		{"one endpoint in two forms", []Engine{at("a", "tcp://*:5557", "", 0), at("b", "tcp://0.0.0.0:5557", "", 0), at("c", "tcp://[::]:5556", "", 2)}, Source{}, []string{
			`models[0].engines[1].kv_events.endpoint is "tcp://0.0.0.0:5557", which is, or has with its ranks, an endpoint that stands before it; want one of its own`,
			`models[0].engines[2].kv_events.endpoint is "tcp://[::]:5556", which is, or has with its ranks, an endpoint that stands before it; want one of its own`}},
		{"replays of the same engine", []Engine{at("a", "tcp://a:5557", "tcp://a:5557", 0)}, Source{}, []string{
			`models[0].engines[0].kv_events.replay_endpoint is "tcp://a:5557", which is, or has with its ranks, an endpoint that stands before it; want one of its own`}},
		{"hosts", []Engine{at("a", "tcp://a b:5557", "tcp://0.0.0.0:5558", 0), at("b", "tcp://u@b:5557", "", 0)}, Source{}, []string{
			`models[0].engines[0].kv_events.endpoint is "tcp://a b:5557"; want tcp://host:port, such as tcp://10.0.0.7:5557`,
			`models[0].engines[0].kv_events.replay_endpoint is "tcp://0.0.0.0:5558"; want tcp://host:port, such as tcp://10.0.0.7:5557`,
			`models[0].engines[1].kv_events.endpoint is "tcp://u@b:5557"; want tcp://host:port, such as tcp://10.0.0.7:5557`}},
		{"a source", nil, Source{DNS: "http://e.svc:8000", KVEvents: KVEvents{Endpoint: "tcp://10.0.0.7:5557", ReplayEndpoint: "tcp://{host}:x"}}, []string{
			`models[0].engines_from.kv_events.endpoint is "tcp://10.0.0.7:5557"; want {host} in it, such as tcp://{host}:5557`,
			`models[0].engines_from.kv_events.replay_endpoint is "tcp://10.0.0.7:x"; want tcp://host:port, such as tcp://10.0.0.7:5557`}},
	} {
		var got []string
		if err := (Config{Models: []Model{{Name: "m", Engines: row.engines, EnginesFrom: row.from}}}).Validate(); err != nil {
			got = strings.Split(err.Error(), "\n")
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", row.name, diff)
		}
	}
}

// TestKVEventsEndpoints: what the gateway connects to or listens on, for each rank, and for engines that DNS has.
func TestKVEventsEndpoints(t *testing.T) {
	e := Engine{Name: "a", DataParallel: 2, KVEvents: KVEvents{Endpoint: "tcp://*:5557", ReplayEndpoint: "tcp://10.0.0.7:5567"}}
	for i, want := range []string{":5557", ":5558"} {
		got, listens := e.Ranks()[i].KVEvents.Publisher()
		if replays := e.Ranks()[i].KVEvents.Replayer(); got != want || !listens || replays != "10.0.0.7:556"+string(rune('7'+i)) {
			t.Errorf("rank %d: %q %v, replays at %q", i, got, listens, replays)
		}
	}
	s := Source{DNS: "http://e.svc:8000", KVEvents: KVEvents{Endpoint: "tcp://{host}:5557"}}
	for host, want := range map[string]string{"10.0.0.9": "10.0.0.9:5557", "fd00::1": "[fd00::1]:5557"} {
		if got, listens := s.Engine("engine", netip.AddrPortFrom(netip.MustParseAddr(host), 8000)).KVEvents.Publisher(); got != want || listens {
			t.Errorf("%s: %q, %v; want %q", host, got, listens, want)
		}
	}
	if got, _ := (KVEvents{}).Publisher(); got != "" || (KVEvents{}).Replayer() != "" {
		t.Errorf("no endpoint is %q", got)
	}
}
