package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pdrouter/internal/demo"
	"pdrouter/internal/proc"
	"pdrouter/kvplane/nixl"
)

// actAsPdrouter makes this test binary behave as the command, for the processes that tests start.
const actAsPdrouter = "PDROUTER_TEST_ACT_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(actAsPdrouter) != "" {
		main()
		return
	}
	os.Setenv(actAsPdrouter, "1") // for each process that a test starts
	m.Run()
}

// newFleet starts a demo fleet that lasts as long as the test.
func newFleet(t *testing.T, ctx context.Context, transport string) *demo.Fleet {
	t.Helper()
	f, err := demo.StartFleet(ctx, t.TempDir(), transport)
	if err != nil {
		t.Fatalf("%v\n%v\n%v", err, f.Stop(), f.Tail())
	}
	stopAfter(t, f)
	return f
}

// stopAfter stops a fleet after the test, and shows what its processes printed if that or the test fails.
func stopAfter(t *testing.T, f *demo.Fleet) {
	t.Cleanup(func() {
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, p := range f.Processes {
				t.Logf("%s printed:\n%s", p.Name, p.Tail(60))
			}
		}
	})
}

// bareFleet is a fleet without processes, that ends with the test and has no more than n addresses to take; must ends the test.
func bareFleet(t *testing.T, n int) (f *demo.Fleet, take func() string, must func(error)) {
	t.Helper()
	f = &demo.Fleet{Dir: t.TempDir()}
	stopAfter(t, f)
	must = func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	free, err := demo.FreeAddresses(n)
	must(err)
	take = func() string {
		a := free[0]
		free = free[1:]
		return a
	}
	return f, take, must
}

func TestDemoComparesEveryAnswer(t *testing.T) {
	t.Parallel() // it waits for processes more than it works
	for _, transport := range []string{"tcp", "auto"} {
		t.Run(transport, func(t *testing.T) {
			var out strings.Builder
			if err := run(t.Context(), []string{"demo", "--transport", transport}, &out); err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			t.Log("\n" + out.String())
			for _, want := range []string{"2/2", "4/4", "13 of 13 answers equal", " alone       cost ", "prefill-0 → decode-1", "prefill-1 → decode-0", "blocks are free again"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the demo does not print %q", want)
				}
			}
		})
	}
}

// TestKilledPrefillCostsNoClientAnError kills one of two prefill engines with signal 9 while clients keep asking: no
// client may see an error or another answer than one engine's alone, and every block comes back.
func TestKilledPrefillCostsNoClientAnError(t *testing.T) {
	t.Parallel() // it waits for processes more than it works
	for _, transport := range []string{"tcp", "nixl"} {
		t.Run(transport, func(t *testing.T) {
			if _, err := nixl.Find(); err != nil && transport == "nixl" {
				t.Skip("SKIPPED, not run with real NIXL:", err)
			}
			killPrefillUnderLoad(t, transport)
		})
	}
}

func killPrefillUnderLoad(t *testing.T, transport string) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	f, err := demo.StartFleet(ctx, t.TempDir(), transport)
	if err != nil {
		t.Fatalf("%v\n%v\n%v", err, f.Stop(), f.Tail())
	}
	asks := demo.Asks()
	want := make([]string, len(asks))
	for i, ask := range asks {
		a, err := demo.Send(ctx, f.Alone, ask)
		if err != nil {
			t.Fatal(err)
		}
		want[i] = a.Text
	}
	const clients, each = 4, 40
	var served atomic.Int64
	killed := make(chan struct{})
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for n := range each {
				i := (c + n) % len(asks)
				switch got, err := demo.Send(ctx, f.Client, asks[i]); {
				case err != nil:
					t.Errorf("client %d, request %d: %v", c, n, err)
					return
				case got.Text != want[i]:
					t.Errorf("client %d, request %d: answer differs from one engine's alone", c, n)
				}
				if served.Add(1) == clients*each/4 {
					close(killed)
				}
			}
		})
	}
	<-killed
	victim := processOf(f, "prefill-0")
	if err := victim.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-victim.Done
	wg.Wait()
	f.Engines = f.Engines[1:] // the living
	if err := f.Settled(ctx); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		t.Log(f.Processes[0].Tail(40))
	}
	victim.Err = nil // its end was ours
	if err := f.Stop(); err != nil {
		t.Error(err)
	}
}

// processOf returns the process of this name.
func processOf(f *demo.Fleet, name string) *proc.Process {
	for _, p := range f.Processes {
		if p.Name == name {
			return p
		}
	}
	panic(fmt.Sprintf("no process %s", name))
}
