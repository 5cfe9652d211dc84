package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pdrouter/kvplane/nixl"
)

// dockerfile returns the repository's Dockerfile, continued lines joined.
func dockerfile(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`\\\n\s*`).ReplaceAllString(string(b), "")
}

// lineOf returns what follows the only line of the Dockerfile that begins so.
func lineOf(t *testing.T, text, begin string) string {
	t.Helper()
	all := regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(begin)+`(.*)$`).FindAllStringSubmatch(text, -1)
	if len(all) != 1 {
		t.Fatalf("the Dockerfile has %d lines that begin with %q; want one", len(all), begin)
	}
	return all[0][1]
}

// TestImageBuilds builds the binary by the Dockerfile's command, of what the image's context has.
func TestImageBuilds(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the whole binary again")
	}
	text, dir := dockerfile(t), t.TempDir()
	ignored, err := os.ReadFile("../../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if slices.Contains(strings.Fields(string(ignored)), e.Name()) {
			continue
		}
		if e.IsDir() {
			err = os.CopyFS(filepath.Join(dir, e.Name()), os.DirFS(filepath.Join("../..", e.Name())))
		} else {
			err = copyFiles(dir, e.Name())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("sh", "-c", "CGO_ENABLED=0 go build"+lineOf(t, text, "RUN CGO_ENABLED=0 go build"))
	build.Dir, build.Env = dir, append(os.Environ(), "VERSION=v9.8.7-6-gabcdef0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command(filepath.Join(dir, "pdrouter"), "--version").CombinedOutput(); err != nil || string(out) != "pdrouter version v9.8.7-6-gabcdef0\n" {
		t.Errorf("version: %q, %v; want the build argument", out, err)
	}
}

// copyFiles copies files of the repository to the same place below dir.
func copyFiles(dir string, names ...string) error {
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			return err
		}
		info, err := os.Stat(filepath.Join("../..", name))
		if err != nil {
			return err
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, b, info.Mode().Perm()); err != nil {
			return err
		}
	}
	return nil
}

// TestImageUnpacksNIXL fetches NIXL's wheel as the Dockerfile does, finds the library, and compares what it needs with what the image installs.
func TestImageUnpacksNIXL(t *testing.T) {
	if testing.Short() {
		t.Skip("downloads NIXL's wheel")
	}
	text, dir := dockerfile(t), t.TempDir()
	files := strings.Fields(lineOf(t, text, "COPY internal/deps/nixl.sh "))
	if err := copyFiles(dir, append([]string{"internal/deps/nixl.sh"}, files[:len(files)-1]...)...); err != nil {
		t.Fatal(err)
	}
	fetch := exec.CommandContext(t.Context(), "internal/deps/nixl.sh")
	fetch.Dir = dir
	if out, err := fetch.CombinedOutput(); err != nil {
		for _, offline := range []string{"No matching distribution", "Temporary failure in name resolution", "Connection", "Network is unreachable", "timed out", "No module named pip", "python3: not found"} {
			if strings.Contains(string(out), offline) {
				t.Skipf("NIXL's wheel cannot be fetched here: %v\n%s", err, out)
			}
		}
		t.Fatalf("%v\n%s", err, out)
	}
	from, to, _ := strings.Cut(lineOf(t, text, "COPY --from=nixl /nixl/"), " ")
	if in := lineOf(t, text, "ENV PDROUTER_NIXL_LIB="); in != to {
		t.Errorf("PDROUTER_NIXL_LIB is %s; NIXL is in %s", in, to)
	}
	wheel := filepath.Join(dir, from)
	t.Setenv("PDROUTER_NIXL_LIB", wheel)
	if path, err := nixl.Find(); err != nil || !strings.HasPrefix(path, wheel) {
		t.Fatalf("found %q: %v", path, err)
	}
	packages := strings.Fields(lineOf(t, text, "RUN apt-get update "))
	for _, lib := range outside(t, wheel) {
		if want := debianPackage(lib); !slices.Contains(packages, want) && want != "libc6" {
			t.Errorf("NIXL needs %s, which the wheel does not bring; the image does not install %s", lib, want)
		}
	}
}

// outside returns the libraries that those of a wheel need and that are not in it.
func outside(t *testing.T, wheel string) []string {
	t.Helper()
	var libs []string
	for _, pattern := range []string{".nixl_cu*.mesonpy.libs/libnixl_capi.so", ".nixl_cu*.mesonpy.libs/plugins/libplugin_UCX.so"} {
		found, err := filepath.Glob(filepath.Join(wheel, pattern))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v %v", pattern, found, err)
		}
		out, err := exec.Command("ldd", found[0]).Output()
		if err != nil {
			t.Skipf("ldd cannot be run here: %v", err)
		}
		for line := range strings.SplitSeq(string(out), "\n") {
			if name, at, ok := strings.Cut(strings.TrimSpace(line), " => "); ok && !strings.HasPrefix(at, wheel) {
				libs = append(libs, name)
			}
		}
	}
	slices.Sort(libs)
	return slices.Compact(libs)
}

// debianPackage names the package of Debian bookworm that has a library; those of glibc are in every image.
func debianPackage(lib string) string {
	switch name, _, _ := strings.Cut(lib, ".so"); name {
	case "libc", "libm", "libdl", "libpthread", "librt":
		return "libc6"
	case "libstdc++":
		return "libstdc++6"
	case "libgcc_s":
		return "libgcc-s1"
	case "libz":
		return "zlib1g"
	case "libssl", "libcrypto":
		return "libssl3"
	default:
		return "a package for " + lib
	}
}

// TestImageFits: the image is built with the Go of go.mod, runs as a user without rights, and exposes the ports of the manifests.
func TestImageFits(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(mod))
	if version == nil {
		t.Fatal("go.mod names no version of Go")
	}
	text := dockerfile(t)
	for begin, want := range map[string]string{
		"FROM golang:" + version[1]: `^-bookworm@sha256:[0-9a-f]{64} AS build$`,
		"FROM debian:":              `^bookworm-slim@sha256:[0-9a-f]{64}$`,
		"COPY --from=build ":        `^/src/pdrouter /usr/local/bin/pdrouter$`,
		"USER ":                     `^[1-9]\d*:[1-9]\d*$`,
		"EXPOSE ":                   `^8080 8081 9090$`,
		"ENTRYPOINT ":               `^\["/usr/local/bin/pdrouter", "serve"\]$`, // the shell form would keep signals from the process
		"CMD ":                      `^\["-c", "` + regexp.QuoteMeta(defaultConfig) + `"\]$`,
	} {
		if got := lineOf(t, text, begin); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s%s; want %s", begin, got, want)
		}
	}
}
