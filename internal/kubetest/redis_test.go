package kubetest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
)

// TestRedisWantsThePassword runs the Redis container's own command with its mounts in a folder: whoever has not the
// Secret's password is refused, and the process ends when it is told to.
func TestRedisWantsThePassword(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed")
	}
	all := of[appsv1.Deployment](objects(t, "default"))
	c := all[slices.IndexFunc(all, func(d *appsv1.Deployment) bool { return d.Name == "pdrouter-redis" })].Spec.Template.Spec.Containers[0]
	dir, err := os.MkdirTemp("", "redis") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	args := append([]string{}, c.Command[1:]...)
	for _, a := range c.Args {
		for _, m := range c.VolumeMounts {
			a = strings.ReplaceAll(a, m.MountPath+"/", filepath.Join(dir, m.MountPath)+"/")
			a = strings.ReplaceAll(a, m.MountPath+" ", filepath.Join(dir, m.MountPath)+" ")
			if err := os.MkdirAll(filepath.Join(dir, m.MountPath), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		args = append(args, a)
	}
	if err := os.WriteFile(filepath.Join(dir, "etc/redis-password/password"), []byte("a-password\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	args[len(args)-1] += " --port 0 --unixsocket " + socket
	cmd := exec.Command(c.Command[0], args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })

	var conn net.Conn
	for deadline := time.Now().Add(time.Minute); conn == nil; time.Sleep(10 * time.Millisecond) {
		if conn, err = net.Dial("unix", socket); err != nil && time.Now().After(deadline) {
			t.Fatalf("%q: %v", args, err)
		}
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for _, tt := range []struct{ say, want string }{
		{"PING", "-NOAUTH"}, {"AUTH pdrouter wrong", "-WRONGPASS"}, {"AUTH a-password", "-WRONGPASS"}, {"AUTH pdrouter a-password", "+OK"},
		{"PING", "+PONG"}, {"HSET pdrouter:a b c", ":1"}, {"HSET other b c", "-NOPERM"}, {"FLUSHALL", "-NOPERM"},
	} {
		fmt.Fprintf(conn, "%s\r\n", tt.say)
		if got, err := answers.ReadString('\n'); err != nil || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %q, %v; want %s", tt.say, got, err, tt.want)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("Redis does not end at SIGTERM")
	}
}
