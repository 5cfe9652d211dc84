package policies

import (
	"fmt"
	"os"

	"pdrouter/internal/yamlfile"
)

// Parse reads a policy from YAML. name stands in messages: "policies/x.yaml:7: rules[1] …". It reports every
// mistake at once, joined, in the order of their lines.
func Parse(name string, b []byte) (*Policy, error) {
	var cfg Config
	f := yamlfile.Decode(name, b, &cfg)
	f.Check(cfg.Validate())
	if err := f.Err(); err != nil {
		return nil, err
	}
	return New(cfg)
}

// Load reads the policy file at path.
func Load(path string) (*Policy, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("policies: %w", err)
	}
	return Parse(path, b)
}
