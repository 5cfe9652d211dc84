package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"pdrouter/internal/configfile"
)

func TestConfigSchemaIsPrinted(t *testing.T) {
	for name, want := range map[string]string{"config": configfile.Schema, "policy": configfile.PolicySchema, "engines": configfile.EnginesSchema} {
		if printed := call(t, "config", "schema", name); printed != want {
			t.Errorf("pdrouter config schema %s prints %d bytes; want the schema's %d", name, len(printed), len(want))
		}
	}
	if call(t, "config", "schema") != configfile.Schema {
		t.Error("pdrouter config schema prints another schema than that of the configuration")
	}
}

// TestConfigDumpIsPrinted: as YAML it is what the configuration is dumped as, as JSON it is a value.
func TestConfigDumpIsPrinted(t *testing.T) {
	path, err := filepath.Abs("../../configs/kvplane.yaml")
	if err != nil {
		t.Fatal(err)
	}
	l, err := configfile.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := l.Dump()
	if err != nil {
		t.Fatal(err)
	}
	if got := call(t, "config", "dump", path); got != string(want) {
		t.Errorf("config dump prints\n%s\nwant\n%s", got, want)
	}
	var value map[string]any
	if err := json.Unmarshal([]byte(call(t, "config", "dump", "-o", "json", path)), &value); err != nil || value["models"] == nil {
		t.Errorf("config dump -o json: %v, %v", value, err)
	}
}
