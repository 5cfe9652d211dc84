package cuda

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

//go:embed capi.go
var source string

// headers returns the copies of cuda.h on this machine: of CUDA's toolkit, or of a wheel that brings one.
func headers(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{
		"/usr/local/cuda*/include/cuda.h",
		"../../.deps/*/lib/python3*/site-packages/nvidia/*/include/cuda.h",
		"../../.deps/*/lib/python3*/site-packages/triton/backends/nvidia/include/cuda.h",
	} {
		files, _ := filepath.Glob(pattern) // its only error is a bad pattern
		found = append(found, files...)
	}
	if len(found) == 0 {
		t.Skip("SKIPPED, prototypes not compared: there is no cuda.h")
	}
	return found
}

var (
	prototype = regexp.MustCompile(`(?s)CUresult\s+(?:CUDAAPI\s+)?(cu\w+)\s*\(([^()]*)\)`)
	spaces    = regexp.MustCompile(`\s+`)
	stars     = regexp.MustCompile(`\s*\*\s*`)
	renamed   = regexp.MustCompile(`(?m)^\s*#\s*define\s+(cu\w+)\s+(?:__CUDA_API_PT\w+\()?(cu\w+_v2)\)?\s*$`)
)

// prototypes finds the declarations in C text, by name, with their white space made the same.
func prototypes(text string) map[string]string {
	out := make(map[string]string)
	for _, m := range prototype.FindAllStringSubmatch(text, -1) {
		list := stars.ReplaceAllString(spaces.ReplaceAllString(strings.TrimSpace(m[2]), " "), " *")
		if _, known := out[m[1]]; !known { // older ones follow
			out[m[1]] = strings.ReplaceAll(list, "* *", "**")
		}
	}
	return out
}

// TestPrototypesMatchTheHeader compares each function's comment and exported name, and the numbers, with cuda.h.
func TestPrototypesMatchTheHeader(t *testing.T) {
	own := prototypes(source)
	var c capi
	if len(own) != len(c.functions()) {
		t.Fatalf("%d prototypes for %d functions", len(own), len(c.functions()))
	}
	for _, file := range headers(t) {
		t.Run(file, func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text := string(raw)
			header, names := prototypes(text), map[string]string{}
			for _, m := range renamed.FindAllStringSubmatch(text, -1) {
				names[m[1]] = m[2]
			}
			exported := map[string]bool{}
			for name, list := range own {
				if header[name] != list {
					t.Errorf("%s(%s); the header has (%s)", name, list, header[name])
				}
				if newer := names[name]; newer != "" {
					name = newer
				}
				exported[name] = true
			}
			for _, f := range c.functions() {
				if !exported[f.name] {
					t.Errorf("%s is not what the header makes of any prototype", f.name)
				}
			}
			for name, want := range map[string]int{"CUDA_SUCCESS": success, "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS": syncMemops} {
				if !regexp.MustCompile(fmt.Sprintf(`\b%s\s*=\s*%d\b`, name, want)).MatchString(text) {
					t.Errorf("%s is not %d", name, want)
				}
			}
		})
	}
}
