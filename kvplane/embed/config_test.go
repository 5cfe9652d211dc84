package embed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	wholeRank = `{kind: rank, engine: e, compatibility: c, gateway: {url: "http://127.0.0.1:1", token_file: t},
  cache: {block_tokens: 16, heads: 2, head_bytes: 64, dtype: f32}`
	wholeScheduler = `{kind: scheduler, engine: e`
)

// TestConfig: what a configuration may say, and that each mistake is named by its key.
func TestConfig(t *testing.T) {
	for _, c := range []struct {
		text string
		want string // in the error; "" is none
	}{
		{wholeRank + `}`, ""},
		{wholeScheduler + `}`, ""},
		{strings.ReplaceAll(wholeScheduler, "scheduler", `"scheduler"`) + `, "size": {"pp": 2, "tp": 4}}`, ""},
		{wholeScheduler + `, control: {listen: "127.0.0.1:0"}}`, ""},
		{wholeScheduler + `, control: {listen: "0.0.0.0:0"}}`, "control.keys is missing"},
		{wholeScheduler + `, control: {listen: "here"}}`, `control.listen is "here"`},
		{wholeScheduler + `, control: {url: "http://x:1"}}`, "control.url is for ranks"},
		{wholeScheduler + `, gateway: {record_keys: [k]}}`, ""},
		{wholeScheduler + `, gateway: {url: "http://x:1", record_keys: [k]}}`, "gateway has more than record_keys"},
		{wholeScheduler + `, colour: red}`, "colour"},
		{wholeScheduler + `, size: {tp: 2000}}`, "size.tp is 2000"},
		{wholeScheduler + `, size: {tp: 1000, pp: 1000}}`, "more than 1024 ranks"},
		{wholeScheduler + `, rank: {tp: 1}}`, "rank.tp is 1"},
		{wholeScheduler + `, times: {lease: -1s}}`, "times.lease is -1s"},
		{wholeScheduler + `, times: {lease: soon}}`, "times.lease"},
		{wholeScheduler + `, log: {level: loud}}`, `log.level is "loud"`},
		{`{engine: e}`, `kind is ""`},
		{`{kind: rank, engine: ".."}`, "engine is \"..\"; want 1 to 128 letters"},
		{wholeRank + `, role: both!}`, `role is "both!"`},
		{wholeRank + `, http: here}`, `http is "here"`},
		{wholeRank + `, control: {listen: "127.0.0.1:0"}}`, "control.listen is"},
		{wholeRank + `, transport: {name: air, path: sea, listen: x}}`, "transport.path is"},
		{strings.Replace(wholeRank, "dtype: f32", "memory: vram", 1) + `, transport: {name: tcp}}`, "cache.memory is vram"},
		{strings.Replace(wholeRank, "heads: 2", "heads: 0", 1) + `}`, "cache.heads is 0"},
		{strings.Replace(wholeRank, "token_file: t", "ttl: 1s", 1) + `}`, "gateway.token_file is missing"},
		{strings.Replace(wholeRank, "compatibility: c, ", "", 1) + `}`, "compatibility has 0 bytes"},
		{"", "empty"},
		{"/no/such/file", "no such file"},
		{"{" + strings.Repeat(" ", maxConfig), "want at most"},
	} {
		_, err := ParseConfig([]byte(c.text))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%.200s: %v", c.text, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || FaultOf(err) != Refused):
			t.Errorf("%.200s: %v, fault %d; want %q", c.text, err, FaultOf(err), c.want)
		}
	}
}

// TestConfigFile: a path is read, and mistakes carry its lines.
func TestConfigFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rank.yaml")
	if err := os.WriteFile(path, []byte("kind: scheduler\nengine: e\nsize:\n  tp: many\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseConfig([]byte(path)); err == nil || !strings.Contains(err.Error(), "rank.yaml:4") {
		t.Errorf("%v; want line 4", err)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(wholeRank + `}`))
	f.Add([]byte(wholeScheduler + `, control: {listen: "127.0.0.1:0"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || b[0] != '{' {
			return // a path
		}
		if c, err := ParseConfig(b); err == nil {
			if err := c.Validate(); err != nil {
				t.Fatalf("taken, and not valid: %v", err)
			}
		} else if FaultOf(err) != Refused {
			t.Fatalf("%v has fault %d", err, FaultOf(err))
		}
	})
}
