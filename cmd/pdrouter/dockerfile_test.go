package main

import (
	"bufio"
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pdrouter/kvplane/nixl"
)

// dockerfile returns the repository's stages and the numeric user of the last one.
func dockerfile(t *testing.T) (stages []stage, uid, gid uint32) {
	t.Helper()
	b, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	if stages, err = parseDockerfile(b); err != nil {
		t.Fatal(err)
	}
	user := stages[len(stages)-1].last(t, "USER")
	u, g, _ := strings.Cut(user.rest, ":")
	un, uErr := strconv.ParseUint(u, 10, 32)
	gn, gErr := strconv.ParseUint(g, 10, 32)
	if uErr != nil || gErr != nil || un == 0 || gn == 0 {
		t.Fatalf("line %d: USER %s; want two numbers that are not 0", user.line, user.rest)
	}
	return stages, uint32(un), uint32(gn)
}

// TestDockerfileBuildsAndServes runs the build stage in an empty folder, then starts the binary as the image would,
// as its unprivileged user: it serves, and ends with status 0 when it is told to.
func TestDockerfileBuildsAndServes(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the whole binary again")
	}
	stages, uid, gid := dockerfile(t)
	im := image{context: "../..", root: reachableDir(t), args: []string{"VERSION=v9.8.7-6-gabcdef0"}}
	final := stages[len(stages)-1]
	if err := im.build(t, stages[0]); err != nil {
		t.Fatal(err)
	}
	for _, st := range final.steps {
		if st.do == "COPY" && strings.Contains(st.rest, "--from="+stages[0].name+" ") {
			im.copy(t, "final", "/", st)
		}
	}
	if out, err := exec.Command(im.path("final", final.last(t, "ENTRYPOINT").words(t)[0]), "--version").CombinedOutput(); err != nil || string(out) != "pdrouter version v9.8.7-6-gabcdef0\n" {
		t.Errorf("version: %q, %v; want the build argument", out, err)
	}
	config := im.path("final", "config.yaml")
	text := "listen: {clients: '127.0.0.1:0', operations: '127.0.0.1:0'}\nmodels: [{name: m, engines: [{name: e, url: 'http://127.0.0.1:9'}]}]\n"
	if err := os.WriteFile(config, []byte(text), 0o444); err != nil {
		t.Fatal(err)
	}
	args := final.last(t, "ENTRYPOINT").words(t)
	args[0] = im.path("final", args[0])
	defaults := final.last(t, "CMD").words(t)
	if len(defaults) != 2 || defaults[0] != "-c" {
		t.Fatalf("CMD is %q; want -c and a file", defaults)
	}
	args = append(args, "-c", config)

	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin"}
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	} else {
		t.Logf("not root: pdrouter runs as this user, not as %d", uid)
	}
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer watchdog.Stop()
	line, err := bufio.NewReader(out).ReadString('\n')
	at := regexp.MustCompile(`operations on (http://\S+)`).FindStringSubmatch(line)
	if err != nil || at == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("pdrouter said %q: %v\n%s", line, err, log.String())
	}
	resp, err := http.Get(at[1] + "/health")
	if err != nil {
		t.Error(err)
	} else {
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("/health: %s", resp.Status)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, log.String())
	}
}

// reachableDir returns a folder that other users can reach, which t.TempDir's is not.
func reachableDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pdrouter-image-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestDockerfileUnpacksNIXL runs the stage that fetches NIXL's wheel, and finds the library where the last stage's
// environment says it is.
func TestDockerfileUnpacksNIXL(t *testing.T) {
	stages, _, _ := dockerfile(t)
	i := slices.IndexFunc(stages, func(s stage) bool { return s.name == "nixl" })
	if i < 0 {
		t.Fatal("no stage nixl")
	}
	if testing.Short() {
		t.Skip("downloads NIXL's wheel")
	}
	im := image{context: "../..", root: t.TempDir()}
	if err := im.build(t, stages[i]); err != nil {
		for _, offline := range []string{"No matching distribution", "Temporary failure in name resolution", "Connection", "Network is unreachable", "timed out", "No module named pip", "python3: not found"} {
			if strings.Contains(err.Error(), offline) {
				t.Skipf("NIXL's wheel cannot be fetched here: %v", err)
			}
		}
		t.Fatal(err)
	}
	final := stages[len(stages)-1]
	for _, st := range final.steps {
		if st.do == "COPY" && strings.Contains(st.rest, "--from=nixl ") {
			im.copy(t, "final", "/", st)
		}
	}
	name, at, _ := strings.Cut(final.last(t, "ENV").rest, "=")
	t.Setenv(name, im.path("final", at))
	if path, err := nixl.Find(); err != nil || !strings.HasPrefix(path, im.path("final", at)) {
		t.Fatalf("found %q: %v", path, err)
	}
	packages := strings.Fields(final.last(t, "RUN").rest)
	for _, lib := range outside(t, im.path("final", at)) {
		if want := debianPackage(lib); !slices.Contains(packages, want) && want != "libc6" {
			t.Errorf("NIXL needs %s, which the wheel does not bring; the last stage does not install %s", lib, want)
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

// TestDockerfileAgreesWithItself: the last stage copies only from stages that exist, exposes the ports that the
// manifests use, and stands on a glibc with the C++ library that NIXL needs.
func TestDockerfileAgreesWithItself(t *testing.T) {
	stages, _, _ := dockerfile(t)
	final := stages[len(stages)-1]
	names := []string{}
	for _, s := range stages[:len(stages)-1] {
		names = append(names, s.name)
	}
	for _, st := range final.steps {
		if from := regexp.MustCompile(`--from=(\S+)`).FindStringSubmatch(st.rest); st.do == "COPY" && (from == nil || !slices.Contains(names, from[1])) {
			t.Errorf("line %d: COPY %s is not from one of the stages %q", st.line, st.rest, names)
		}
	}
	if got := final.last(t, "EXPOSE").rest; got != "8080 8081 9090" {
		t.Errorf("EXPOSE %s", got)
	}
	if run := final.last(t, "RUN").rest; !strings.HasPrefix(final.base, "debian:") || !strings.Contains(run, "libstdc++6") {
		t.Errorf("the last stage is %s with RUN %s", final.base, run)
	}
	b, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(b))
	if version == nil || !strings.HasPrefix(stages[0].base, "golang:"+version[1]) {
		t.Errorf("the build stage is %s, go.mod says go %s", stages[0].base, version)
	}
}
