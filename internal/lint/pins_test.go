package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// lines calls visit for every line of the files that match a pattern, which begins at the root of the module.
func lines(t *testing.T, pattern string, visit func(at, line string)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no files (%v)", pattern, err)
	}
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(raw), "\\\n", " ")
		for line := range strings.SplitSeq(text, "\n") {
			visit(strings.TrimPrefix(path, "../../"), strings.TrimSpace(line))
		}
	}
}

// TestImagesArePinned: an image is named by digest, or the line says why not.
func TestImagesArePinned(t *testing.T) {
	digest := regexp.MustCompile(`@sha256:[0-9a-f]{64}(\s|$)`)
	stages, seen := map[string]bool{}, 0
	check := func(at, line, image string) {
		if seen++; !digest.MatchString(image+" ") && !strings.Contains(line, " # not pinned: ") {
			t.Errorf("%s: %s: the image has no digest (make pin-images), and no comment \"# not pinned: REASON\"", at, line)
		}
	}
	lines(t, "Dockerfile", func(at, line string) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "FROM" {
			return
		}
		if !stages[f[1]] {
			check(at, line, f[1])
		}
		if len(f) == 4 {
			stages[f[3]] = true
		}
	})
	lines(t, "deploy/helm/pdrouter/values.yaml", func(at, line string) {
		if image, ok := strings.CutPrefix(line, "image:"); ok && image != "" {
			check(at, line, strings.Fields(image)[0])
		}
	})
	if seen < 5 {
		t.Errorf("only %d images were seen", seen)
	}
}

// TestPythonPackagesArePinned: pip installs from requirement files alone, and each requirement has its hashes.
func TestPythonPackagesArePinned(t *testing.T) {
	pip := regexp.MustCompile(`\bpip"? (install|download|wheel)\b`)
	seen := 0
	for _, pattern := range []string{"internal/deps/*.sh", "Dockerfile", "Makefile", ".ci/*"} {
		lines(t, pattern, func(at, line string) {
			if strings.HasPrefix(line, "#") || !pip.MatchString(line) {
				return
			}
			seen++
			if !strings.Contains(line, "--requirement ") || !strings.Contains(line, "--require-hashes") && !strings.Contains(line, "--dry-run") {
				t.Errorf("%s: %s: want --require-hashes and --requirement FILE", at, line)
			}
		})
	}
	if seen < 3 {
		t.Errorf("only %d calls of pip were seen", seen)
	}
	requirement := regexp.MustCompile(`^[A-Za-z0-9._-]+==[^\s]+(\s+--hash=sha256:[0-9a-f]{64})+$`)
	seen = 0
	for _, pattern := range []string{"internal/deps/*.lock", "internal/e2e/*.lock"} {
		lines(t, pattern, func(at, line string) {
			if line == "" || strings.HasPrefix(line, "#") {
				return
			}
			if seen++; !requirement.MatchString(line) {
				t.Errorf("%s: %.80s: want NAME==VERSION with its hashes", at, line)
			}
		})
	}
	if seen < 180 {
		t.Errorf("only %d requirements were seen", seen)
	}
}

// TestPinImages runs the script over a copy of the files, with a registry client that says the same digest of every tag.
func TestPinImages(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, mode os.FileMode, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	script, err := os.ReadFile("../deps/pin-images.sh")
	if err != nil {
		t.Fatal(err)
	}
	digest := func(c string) string { return "@sha256:" + strings.Repeat(c, 64) }
	put("internal/deps/pin-images.sh", 0o755, string(script))
	put("bin/crane", 0o755, "#!/bin/sh\n[ \"$1\" = digest ] && echo sha256:"+strings.Repeat("b", 64)+"\n")
	put("Dockerfile", 0o644, "FROM golang:1.26"+digest("a")+" AS build\nRUN echo golang:1.26"+digest("a")+"\nFROM debian:slim\nCOPY --from=build a b\n")
	put("deploy/helm/pdrouter/values.yaml", 0o644, "  image: redis:7"+digest("a")+" # why\n  image: pdrouter:latest # not pinned: ours\n")
	cmd := exec.Command("internal/deps/pin-images.sh")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+"/bin:"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, want := range map[string]string{
		"Dockerfile":                       "FROM golang:1.26" + digest("b") + " AS build\nRUN echo golang:1.26" + digest("a") + "\nFROM debian:slim" + digest("b") + "\nCOPY --from=build a b\n",
		"deploy/helm/pdrouter/values.yaml": "  image: redis:7" + digest("b") + " # why\n  image: pdrouter:latest # not pinned: ours\n",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: got\n%s\nwant\n%s%v", name, got, want, err)
		}
	}
	put("bin/crane", 0o755, "#!/bin/sh\necho no such image\n")
	cmd = exec.Command("internal/deps/pin-images.sh")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+"/bin:"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("a registry without a digest: %s; want an error", out)
	}
}
