package transport_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdrouter/kvplane/transport/transporttest"
)

// Two network namespaces. TestTransportNamespaces runs this binary again in namespaces of its own, where the tests
// between two processes start each peer in another network namespace and another one of process ids, so that it can
// neither be reached but over the wire between the two, nor have its memory read.
const (
	// wireVariable is the network interface that a peer process waits for.
	wireVariable = "PDROUTER_TEST_WIRE"

	nearHost = "10.213.0.1"
)

// ip runs the ip command for each line.
func ip(lines ...string) error {
	for _, l := range lines {
		if out, err := exec.Command("ip", strings.Fields(l)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", l, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// TestTransportNamespaces runs the tests between two processes between two network namespaces.
func TestTransportNamespaces(t *testing.T) {
	if namespaced() {
		t.Skip("inside already")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("SKIPPED, not run between network namespaces:", err)
	}
	cmd := exec.Command(os.Args[0], "-test.v", "-test.timeout=5m", "-test.run="+
		"^(TestNamespaceWires|TestProcessesWrite|TestProcessReceiverKilled|TestProcessWriterKilled|TestProcessPeerReplaced)$")
	cmd.Env = append(os.Environ(), hostVariable+"="+nearHost, "UCX_NET_DEVICES=end")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case cmd.Process == nil:
		t.Skip("SKIPPED, not run between network namespaces:", err)
	case strings.Contains(string(out), noWires):
		t.Skipf("SKIPPED, not run between network namespaces:\n%s", out)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	}
	for _, l := range links {
		if l.wired() && l.missing() == nil && !strings.Contains(string(out), "--- PASS: TestProcessesWrite/"+l.title+" ") {
			t.Errorf("%s did not run:\n%s", l.title, out)
		}
	}
	t.Logf("%s", out)
}

// noWires is what the inner process says where it may not make network interfaces.
const noWires = "no network interfaces can be made here"

// TestNamespaceWires makes the near end of the wires: a bridge, and a wire to it that has this side's address.
func TestNamespaceWires(t *testing.T) {
	if !namespaced() {
		t.Skip("only inside the namespaces of another test")
	}
	if err := ip("link set lo up", "link add near type bridge", "link set near up",
		"link add port type veth peer name end", "link set port master near up", "addr add "+nearHost+"/16 dev end", "link set end up"); err != nil {
		t.Fatalf("%s: %v", noWires, err)
	}
	if err := ownSystem(); err != nil {
		t.Log(err)
	}
}

// ownSystem lets /sys show the network of this namespace: UCX looks for its devices there.
func ownSystem() error {
	return errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("sysfs", "/sys", "sysfs", 0, ""))
}

var wires atomic.Int32 // made so far: each peer process has its own

// farAway lets a process start in namespaces of its own, with an address on a wire that begins there.
func farAway(cmd *exec.Cmd) (started func(pid int) error) {
	n := wires.Add(1)
	near, far := fmt.Sprintf("near%d", n), fmt.Sprintf("far%d", n)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=10.213.1.%d", hostVariable, n), wireVariable+"="+far, "UCX_NET_DEVICES="+far)
	return func(pid int) error {
		return ip("link add "+near+" type veth peer name "+far, "link set "+near+" master near up", fmt.Sprintf("link set %s netns %d", far, pid))
	}
}

// awaitWire gives a peer process its address when its wire is there.
func awaitWire(t *testing.T) {
	t.Helper()
	wire := os.Getenv(wireVariable)
	if wire == "" {
		return
	}
	if err := ownSystem(); err != nil {
		t.Log(err)
	}
	for deadline := time.Now().Add(transporttest.Patience); ; time.Sleep(time.Millisecond) {
		err := ip("link set lo up", "addr add "+os.Getenv(hostVariable)+"/16 dev "+wire, "link set "+wire+" up")
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
