package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/router/connector"
)

// TestRanks expands an engine into its data-parallel ranks.
func TestRanks(t *testing.T) {
	one := Engine{Name: "p", URL: "http://10.0.0.1:8000", SideChannel: "10.0.0.1:5600"}
	if diff := cmp.Diff([]Engine{one}, one.Ranks()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	one.DataParallel = 2
	want := []Engine{one, one}
	want[0].Name, want[1].Name, want[1].SideChannel = "p.dp0", "p.dp1", "10.0.0.1:5601"
	if diff := cmp.Diff(want, one.Ranks()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for _, row := range []struct {
		model Model
		want  string
	}{
		{Model{Name: "m", Engines: []Engine{{Name: "a", URL: one.URL, DataParallel: -1}}}, "models[0].engines[0].data_parallel is -1; want 1 to 1024"},
		{Model{Name: "m", Engines: []Engine{{Name: "a.dp1", URL: one.URL}, {Name: "a", URL: one.URL, DataParallel: 2}}},
			`models[0].engines[1].name is "a", whose rank 1 has the name of another engine; want a name of its own`},
		{Model{Name: "m", Connector: connector.NameKVPlane, Prefill: []Engine{{Name: "a", URL: one.URL, DataParallel: 2}}, Decode: []Engine{{Name: "b", URL: one.URL}}},
			"models[0].prefill[0].data_parallel is 2; want no data-parallel ranks for connector kvplane"},
		{Model{Name: "m", Connector: connector.NamePush, Prefill: []Engine{{Name: "a", URL: one.URL, DataParallel: 3, SideChannel: "h:65534"}}, Decode: []Engine{{Name: "b", URL: one.URL}}},
			`models[0].prefill[0].side_channel is "h:65534"; want 3 ports from there on, one for each data-parallel rank`},
	} {
		if err := (Config{Models: []Model{row.model}}).Validate(); err == nil || err.Error() != row.want {
			t.Errorf("got %v; want %s", err, row.want)
		}
	}
}
