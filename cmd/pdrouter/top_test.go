package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdrouter/internal/adminapi"
	"pdrouter/internal/refengine"
	"pdrouter/internal/refengine/refenginetest"
	"pdrouter/metadata"
	"pdrouter/router"
	"pdrouter/router/dispatch"
	"pdrouter/router/exchange"
	"pdrouter/router/report"
)

// topOf is a view with something of each kind, whose names are as a hostile engine would have them.
func topOf() topView {
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	var v topView
	v.status.Version, v.status.Now, v.status.Started = "v1", now, now.Add(-3*time.Hour)
	v.status.Config.Mistakes = []string{"c.yaml:3: wrong\x1b[2J"}
	v.status.Models = map[string]bool{"m": true, "n": false}
	v.status.Queues = []router.QueueStatus{{Model: "m", InFlight: 4, Places: 4, Waiting: 7, Drain: 12}, {Model: "n"}}
	engine := func(name, state, why, role string) router.EngineStatus {
		return router.EngineStatus{EngineStats: router.EngineStats{Name: name, State: state, Why: why, InFlight: 2, Leaked: map[string]int{"lease": 5}}, Places: []router.Place{{Model: "m", Role: role}}}
	}
	v.status.Engines = []router.EngineStatus{engine("p", "up", "", "prefill"), engine("d\x1b[31m\nx\ty", "down", "it cannot\rbe reached", "decode")}
	v.status.PairsTotal, v.status.PairsWarm = 3, 1
	v.status.Pairs = []router.PairStatus{
		{PairState: metadata.PairState{Prefill: "p", Decode: "d", Pairable: true, Why: "d is down"}},
		{PairState: metadata.PairState{Prefill: "p", Decode: "e", Pairable: true, Warm: true}, Circuit: "open"},
		{PairState: metadata.PairState{Prefill: "p", Decode: "f", Pairable: true, Warm: true}},
	}
	v.live = []exchange.Live{{RequestID: "r-live", Model: "m", Arrived: now.Add(-time.Second), Prefill: "p", Decode: "d", PrefillState: "answered", DecodeState: "asked"}}
	failed := report.Summary{RequestID: "r-1", Model: "m", Status: 502, Outcome: dispatch.FailedBefore, Reason: "decode_failed", Decode: "d",
		Failures: []report.Failure{{Engine: "d", Cause: "boom\x07"}}}
	failed.Phases.Total = 1500 * time.Millisecond
	v.recent = []report.Summary{failed, {RequestID: "r-2", Model: "m", Status: 200, Outcome: dispatch.Completed, Reason: "split", Prefill: "p", Decode: "d"}}
	return v
}

func TestTopLines(t *testing.T) {
	levels := map[string]topLevel{}
	var text strings.Builder
	for _, l := range topOf().lines() {
		if strings.ContainsAny(l.text, "\x1b\n\r\t\x07") {
			t.Errorf("the line %q can steer a terminal", l.text)
		}
		name, _, _ := strings.Cut(l.text, "  ")
		for _, id := range []string{"r-live", "r-1", "r-2"} {
			if strings.Contains(l.text, id) {
				name = id
			}
		}
		levels[name] = l.level
		text.WriteString(l.text + "\n")
	}
	for name, want := range map[string]topLevel{"MODEL": topHead, "m": topWarn, "n": topBad, "p": topNormal, `"d\x1b[31m\nx\ty"`: topBad, "p > d": topWarn, "p > e": topWarn, "r-live": topHead, "r-1": topBad, "r-2": topNormal} {
		if got, ok := levels[name]; !ok || got != want {
			t.Errorf("%s has level %d, there: %t; want %d in\n%s", name, got, ok, want, text.String())
		}
	}
	for _, want := range []string{"PAIRS READY 1/3", "up 3 h", "5 leaked (lease)", "4/4", "12 s", "1.50 s", "answered > asked", "decode_failed (d: ", "configuration refused"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("nothing says %q in\n%s", want, text.String())
		}
	}
	if _, ok := levels["p > f"]; ok {
		t.Error("a pair that is ready is listed")
	}
	screen := drawn(topOf().lines(), 20, 5)
	rows := strings.Split(screen, "\r\n")
	if len(rows) != 5 { // four lines, and what clears the rest
		t.Errorf("%d rows on a screen of 5: %q", len(rows), screen)
	}
	for _, r := range rows {
		for _, escape := range []string{home, clearLine, below, plainText, topColors[topHead], topColors[topBad], topColors[topWarn]} {
			r = strings.ReplaceAll(r, escape, "")
		}
		if len([]rune(r)) > 20 || strings.Contains(r, "\x1b") {
			t.Errorf("the row %q is wider than 20, or has escapes", r)
		}
	}
}

// startTop starts a gateway in front of one engine, and returns where its operations are.
func startTop(t *testing.T) string {
	t.Helper()
	engine := "http://" + refenginetest.Start(t, refengine.Config{Name: "one", Model: "reference"})
	path := filepath.Join(t.TempDir(), "c.yaml")
	text := fmt.Sprintf("listen: {clients: \"127.0.0.1:0\", operations: \"127.0.0.1:0\"}\nmodels: [{name: reference, engines: [{name: one, url: %q}]}]\ntimeouts: {health: 100ms}\n", engine)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g := serveFile(t, path)
	post := func() int {
		resp, err := http.Post("http://"+g.Clients().String()+"/v1/completions", "application/json", strings.NewReader(`{"model":"reference","prompt":"hello","max_tokens":2}`))
		if err != nil {
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	for end := time.Now().Add(20 * time.Second); post() != 200; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the gateway never serves")
		}
	}
	return "http://" + g.Operations().String()
}

// TestTopOnce: where there is no terminal, the state is printed once, without escape sequences.
func TestTopOnce(t *testing.T) {
	at := startTop(t)
	var out bytes.Buffer
	if err := run(t.Context(), []string{"top", "--gateway", at}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ready", "MODEL", "reference", "one", "engines", "200"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing says %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("there are escape sequences in %q", out.String())
	}
	for _, args := range [][]string{{"top", "--gateway", "http://127.0.0.1:1"}, {"top", "--interval", "1ms"}, {"top", "--gateway", at, "--token-file", "none"}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

// TestTopGivesUp: a gateway that takes the connection and says nothing is not waited for, and the message says which address that is.
func TestTopGivesUp(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := adminapi.NewClient("http://"+ln.Addr().String(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lookTop(t.Context(), c, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), "there is no answer within 50ms") || !strings.Contains(err.Error(), ln.Addr().String()) {
		t.Errorf("got %v", err)
	}
}

// TestTopOnTerminal runs the command on a terminal: it shows the fleet, ends at q, and leaves the terminal as it was.
func TestTopOnTerminal(t *testing.T) {
	at := startTop(t)
	master, slave := openTerminal(t)
	before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "top", "--gateway", at, "--interval", "100ms")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var mu sync.Mutex
	var seen strings.Builder
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			mu.Lock()
			seen.Write(b[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	shown := func() string {
		mu.Lock()
		defer mu.Unlock()
		return seen.String()
	}
	until := func(what string, ok func(string) bool) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); !ok(shown()); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never: %s in %q", what, shown())
			}
		}
	}
	until("it is drawn and refreshed", func(s string) bool { return strings.Count(s, home) > 2 && strings.Contains(s, "one") })
	if _, err := master.WriteString("xq"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	until("the main screen is back", func(s string) bool { return strings.HasSuffix(s, mainScreen) })
	after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is left as %+v, %v; want %+v", after, err, before)
	}
}

// openTerminal returns both ends of a pseudo terminal of 100 columns and 40 rows.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("SKIPPED: there are no pseudo terminals here: ", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 100}); err != nil {
		t.Fatal(err)
	}
	return master, slave
}
