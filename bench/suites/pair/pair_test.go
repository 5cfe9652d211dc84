package pair

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/suites/plane"
	"pdrouter/metadata"
)

// TestPairRows measures every row once, with engines in this process over tcp.
func TestPairRows(t *testing.T) {
	f, err := openPairs("socket", pairsAtOnce, func() (*plane.PlaneProcess, error) { return ownProcess(t), nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	})
	for _, c := range append(coldRows("socket", f), warmRows("socket", f)...) {
		t.Run(c.Name, func(t *testing.T) {
			rows, err := c.Measure(t.Context(), harness.Config{Rounds: 1, Round: time.Millisecond, Others: 1e9, Refuse: 1000}, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range rows {
				for _, x := range append(row.Beside, row.Ours) {
					if x.Median <= 0 {
						t.Errorf("%s: %s is %v; want more than 0", row.What, x.Of, x.Median)
					}
				}
			}
		})
	}
}

// TestPairVoid: a handshake too many, one too few, and one of a generation that is gone void a run.
func TestPairVoid(t *testing.T) {
	f := &pairFleet{prefill: &pairEngine{name: "prefill-0"}, decode: []*pairEngine{{name: "decode-0"}, {name: "decode-1"}}, shaken: map[metadata.Pair]int{}}
	for i, e := range f.decode {
		e.record.Incarnation = metadata.Incarnation{Engine: e.name, Generation: uint64(7 + i)}
	}
	if err := f.counted(1); !errors.Is(err, load.ErrVoid) {
		t.Errorf("no handshake: %v; want %v", err, load.ErrVoid)
	}
	f.shaken[f.pair(0)] = 1
	if err := f.counted(1); err != nil {
		t.Errorf("one handshake: %v", err)
	}
	if err := f.counted(2); !errors.Is(err, load.ErrVoid) {
		t.Errorf("one handshake of two: %v; want %v", err, load.ErrVoid)
	}
	f.shaken[f.pair(0)] = 2
	if err := f.counted(1); !errors.Is(err, load.ErrVoid) {
		t.Errorf("two handshakes of one pair: %v; want %v", err, load.ErrVoid)
	}
	old := f.pair(0)
	old.Decode.Generation--
	if err := f.shake(t.Context(), old); !errors.Is(err, load.ErrVoid) {
		t.Errorf("a generation that is gone: %v; want %v", err, load.ErrVoid)
	}
}

// ownProcess plays the ranks in the test's own process.
func ownProcess(t *testing.T) *plane.PlaneProcess {
	t.Helper()
	orders, in := io.Pipe()
	out, answers := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- plane.Serve(t.Context(), orders, answers) }()
	return plane.NewPlaneProcess(in, out, os.Getpid(), func() error { return <-ended })
}
