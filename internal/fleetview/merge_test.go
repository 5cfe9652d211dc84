package fleetview

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"pdrouter/internal/configfile"
	"pdrouter/internal/overrides"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

func engineOf(name string) config.Engine {
	return config.Engine{Name: name, URL: "http://" + name + ":8000"}
}

func twoModels() config.Config {
	return config.Config{Models: []config.Model{
		{Name: "a", Connector: connector.NamePush, Prefill: []config.Engine{engineOf("p0")}, PrefillFrom: config.Source{DNS: "http://p:1", BearerTokenFile: "/k"},
			Decode: []config.Engine{engineOf("d0"), {Name: "d1", URL: "http://d1:8000", Drain: true}}},
		{Name: "b/c", Engines: []config.Engine{engineOf("e0")}, EnginesFrom: config.Source{File: "/f"}},
	}}
}

// names lists the engines of a configuration, list by list, those that drain with a !.
func names(cfg config.Config) (all []string) {
	for i := range cfg.Models {
		for _, at := range configfile.EngineLists(&cfg.Models[i]) {
			list := cfg.Models[i].Name + "." + at.Key
			for _, e := range *at.Engines {
				list += " " + e.Name
				if e.Drain {
					list += "!"
				}
			}
			if len(*at.Engines) > 0 {
				all = append(all, list)
			}
		}
	}
	return all
}

// TestMerge has the file win over what is found, that over what is added, and leaves out what does not fit.
func TestMerge(t *testing.T) {
	entry := func(e config.Engine) *config.Engine { return &e }
	at := int64(7)
	r := snapshot{
		found: map[List]found{
			{"a", "prefill"}:    {from: FromDNS, engines: []config.Engine{engineOf("p0"), engineOf("p1"), engineOf("p2")}, leaving: map[string]bool{"p2": true}},
			{"a", "decode"}:     {from: FromDNS, engines: []config.Engine{engineOf("stale")}}, // it has no source any more
			{"b/c", "engines"}:  {from: FromFile, engines: []config.Engine{engineOf("p1"), engineOf("e1"), {Name: "e2", URL: "http://e2:1", Control: "http://e2:2"}}},
			{"gone", "engines"}: {from: FromFile, engines: []config.Engine{engineOf("x")}},
		},
		overrides: overrides.ByEngine{
			"d0":    {Engine: "d0", Drain: overrides.DrainOn},
			"d1":    {Engine: "d1", Drain: overrides.DrainOff},
			"p1":    {Engine: "p1", Model: "a", List: "decode", Entry: entry(engineOf("p1"))},
			"new":   {Engine: "new", Model: "b/c", List: "engines", Entry: entry(engineOf("new")), Drain: overrides.DrainOn},
			"theft": {Engine: "theft", Model: "b/c", List: "engines", Entry: &config.Engine{Name: "theft", URL: "http://x:1", BearerTokenFile: "/etc/shadow"}},
			"key":   {Engine: "key", Model: "a", List: "decode", Entry: &config.Engine{Name: "key", URL: "http://x:1", BearerTokenFile: "/k"}},
			"wrong": {Engine: "wrong", Model: "a", List: "engines", Entry: entry(engineOf("wrong"))},
			"lost":  {Engine: "lost", Model: "no", List: "engines", Entry: entry(engineOf("lost"))},
			"e0":    {Engine: "e0", Removed: true, At: at},
			"e1":    {Engine: "e1", Removed: true, At: at},
			"old":   {Engine: "old", Model: "a", List: "prefill", Entry: entry(engineOf("old")), Removed: true, At: at},
		},
		removed: map[string]int64{"e0": at, "e1": at - 1, "old": at, "d0": at},
	}
	cfg := twoModels()
	got, all, out := r.merge(cfg)
	want := []string{"a.prefill p0 p1 p2!", "a.decode d0! d1 key", "b/c.engines e1! new!"}
	if diff := cmp.Diff(names(got), want); diff != "" {
		t.Error("merged (-got +want):\n" + diff)
	}
	if !reflect.DeepEqual(cfg, twoModels()) {
		t.Error("the configuration that was merged with has changed")
	}
	if err := got.Validate(); err != nil {
		t.Errorf("what was merged is not sound: %v", err)
	}
	if p, ok := find(all, "e0"); !ok || !p.Removed || p.From != FromStatic {
		t.Errorf("e0 is %+v; want it told as gone", p)
	}
	if _, ok := find(all, "old"); ok {
		t.Error("an engine that was added and removed is told of")
	}
	left := map[string]string{}
	for _, c := range out {
		left[c.engine+" "+c.from] = c.why
	}
	for engine, why := range map[string]string{"p0 dns": "has its name", "p1 file": "has its name", "p1 admin": "has its name", "e2 file": "control",
		"theft admin": "bearer_token_file", "wrong admin": "engines is set"} {
		if !strings.Contains(left[engine], why) {
			t.Errorf("%s is left out because of %q; want %q", engine, left[engine], why)
		}
		delete(left, engine)
	}
	if len(left) > 0 {
		t.Errorf("left out as well: %v", left)
	}
}

// TestMergeIsAlwaysSound merges random engines into random configurations: what comes out is sound, has every engine of the file
// that was not removed, each name once, and the order of overrides does not matter.
func TestMergeIsAlwaysSound(t *testing.T) {
	for seed := range uint64(1000) {
		random := rand.New(rand.NewPCG(seed, 3))
		engine := func() config.Engine {
			e := engineOf(fmt.Sprint("e", random.IntN(12)))
			switch random.IntN(8) {
			case 0:
				e.Control = "http://c:1"
			case 1:
				e.SideChannel = "c:1"
			case 2:
				e.URL = "no url"
			}
			e.Drain = random.IntN(3) == 0
			return e
		}
		cfg := twoModels()
		r := snapshot{found: map[List]found{}, overrides: overrides.ByEngine{}, removed: map[string]int64{}}
		for _, at := range []List{{"a", "prefill"}, {"a", "decode"}, {"b/c", "engines"}, {"none", "decode"}} {
			f := found{from: FromDNS, leaving: map[string]bool{}}
			for range random.IntN(4) {
				e := engine()
				f.engines, f.leaving[e.Name] = append(f.engines, e), random.IntN(2) == 0
			}
			r.found[at] = f
		}
		for range random.IntN(10) {
			e := engine()
			if random.IntN(3) == 0 {
				e.Name = []string{"p0", "d0", "d1", "e0"}[random.IntN(4)]
			}
			rec := overrides.Override{Engine: e.Name, Removed: random.IntN(3) == 0, At: int64(random.IntN(3)), Drain: []overrides.Drain{overrides.AsSourced, overrides.DrainOn, overrides.DrainOff}[random.IntN(3)]}
			if random.IntN(2) == 0 {
				rec.Model, rec.List, rec.Entry = []string{"a", "b/c", "no"}[random.IntN(3)], []string{"prefill", "decode", "engines", "odd"}[random.IntN(4)], &e
			}
			r.overrides[e.Name], r.removed[e.Name] = rec, int64(random.IntN(3))
		}
		got, all, _ := r.merge(cfg)
		if err := got.Validate(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		seen := map[string]bool{}
		for _, p := range all {
			if seen[p.Name] {
				t.Fatalf("seed %d: %s is there twice", seed, p.Name)
			}
			seen[p.Name] = true
			if (p.Override.Removed || p.Leaving) && !p.Removed && !p.Drain {
				t.Fatalf("seed %d: %+v is to be drained", seed, p)
			}
		}
		for _, name := range []string{"p0", "d0", "d1", "e0"} {
			if !seen[name] {
				t.Fatalf("seed %d: %s of the file is lost", seed, name)
			}
		}
		again, _, _ := r.merge(twoModels())
		if !reflect.DeepEqual(got, again) || !reflect.DeepEqual(cfg, twoModels()) {
			t.Fatalf("seed %d: merging again makes another configuration", seed)
		}
	}
}

// TestMergeKeepsRanksApart leaves out an engine that would have the name of another one's data-parallel rank, and the other
// way round: with both the router would take nothing.
func TestMergeKeepsRanksApart(t *testing.T) {
	rank, ranks := engineOf("one.dp0"), engineOf("two")
	ranks.DataParallel = 2
	one := engineOf("one")
	one.DataParallel = 2
	cfg := config.Config{Models: []config.Model{{Name: "m", Engines: []config.Engine{one, engineOf("two.dp1")}}}}
	r := snapshot{overrides: overrides.ByEngine{"one.dp0": {Engine: "one.dp0", Model: "m", List: "engines", Entry: &rank}, "two": {Engine: "two", Model: "m", List: "engines", Entry: &ranks}}}
	got, _, out := r.merge(cfg)
	if err := got.Validate(); err != nil || len(out) != 2 || len(got.Models[0].Engines) != 2 {
		t.Errorf("%v, left out %v; want both left out", err, out)
	}
}

// TestMergeTellsMachinesApart has an override of an engine that was added and removed, whose name another machine of the file has.
func TestMergeTellsMachinesApart(t *testing.T) {
	e := engineOf("x")
	r := snapshot{overrides: overrides.ByEngine{"x": {Engine: "x", Model: "m", List: "engines", Entry: &e, Removed: true, At: 5}}, removed: map[string]int64{"x": 5}}
	for url, want := range map[string]int{e.URL: 0, "http://another:9": 1} {
		got, _, _ := r.merge(config.Config{Models: []config.Model{{Name: "m", Engines: []config.Engine{{Name: "x", URL: url}}}}})
		if n := len(got.Models[0].Engines); n != want {
			t.Errorf("%s: %d engines; want %d", url, n, want)
		}
	}
}
