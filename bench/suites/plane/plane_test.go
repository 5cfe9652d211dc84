package plane

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"pdrouter/bench/harness"
	"pdrouter/bench/load"
	"pdrouter/bench/report"
	"pdrouter/metadata"
)

// beside starts a rank's process of a plane run in this process.
func beside(t *testing.T) *PlaneProcess {
	t.Helper()
	orders, in := io.Pipe()
	out, answers := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(t.Context(), orders, answers) }()
	return NewPlaneProcess(in, out, os.Getpid(), func() error { return <-ended })
}

func openStage(t *testing.T, which string, layout PlaneLayout) *planeStage {
	t.Helper()
	s, err := openPlaneStage(beside(t), which, layout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestPlaneRows measures every kind of row once, small: over tcp's sockets, and over NIXL where it is installed.
func TestPlaneRows(t *testing.T) {
	if testing.Short() {
		t.Skip("pushes a few hundred transfers")
	}
	layout := PlaneLayout{Blocks: 64, BlockBytes: 4096, TP: 1}
	for _, tc := range []struct {
		which string
		tp    int
		row   planeRow
	}{
		{"socket", 1, bandwidthRow("socket", 4, PlaneShape{Blocks: 8})},
		{"socket", 1, bandwidthRow("memory", 4, PlaneShape{8, true})}, // its systems: those of memory, over sockets
		{"socket", 1, postRow("socket", 8)},
		{"socket", 1, mergedRow("socket", 8)},
		{"socket", 1, notifyRow("socket")},
		{"socket", 4, countRow("socket", 4)},
		{"socket", 1, registerRow("memory")},
		{"socket", 1, releaseRow("socket")},
		{"socket", 1, outstandingRow("socket", 2, 20)},
		{"nixl", 1, postRow("nixl", 8)},
		{"nixl", 1, notifyRow("nixl")},
		{"nixl", 2, countRow("nixl", 2)},
	} {
		t.Run(tc.which+" "+tc.row.name, func(t *testing.T) {
			if tc.which == "nixl" {
				if err := NoNIXL(); err != nil {
					t.Skipf("SKIPPED: %v", err)
				}
			}
			layout.TP = tc.tp
			s := openStage(t, tc.which, layout)
			c, err := tc.row.of(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			c.Name = tc.row.name
			for i := range c.Systems { // 1 ms of each says as much as a round here
				round := c.Systems[i].Round
				c.Systems[i].Round = func(ctx context.Context, _ time.Duration) (harness.Sample, error) {
					return round(ctx, time.Millisecond)
				}
			}
			rows, err := c.Measure(t.Context(), harness.Config{Rounds: 1, Others: 1e9, Refuse: 1000}, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range rows {
				for _, f := range append(row.Beside, row.Ours) {
					if f.Median <= 0 {
						t.Errorf("%s: %s is %v; want more than 0", row.What, f.Of, f.Median)
					}
				}
				var b bytes.Buffer
				r := &report.Report{Suite: "plane", Rows: []report.Row{row}}
				if r.Table(&b); !strings.Contains(b.String(), row.Name) {
					t.Errorf("%s is not in the report", row.Name)
				}
			}
		})
	}
}

// TestPlaneVoid makes a run whose bytes are wrong, or took another path, void.
func TestPlaneVoid(t *testing.T) {
	s := openStage(t, "socket", PlaneLayout{Blocks: 64, BlockBytes: 4096, TP: 1})
	if err := s.path(PlaneAnswer{Sockets: 1, Memory: 1}); !errors.Is(err, load.ErrVoid) {
		t.Errorf("a path that is not the row's: %v; want %v", err, load.ErrVoid)
	}
	for i := range s.rank.memory { // so that whatever is pushed is not what the other side expects
		s.rank.memory[i]++
	}
	if _, err := s.push(1, PlaneShape{Blocks: 16}); err == nil || !strings.Contains(err.Error(), "holds") {
		t.Errorf("wrong bytes were taken for right: %v", err)
	}
	if planeWord(8, metadata.Prefill) == planeWord(8, metadata.Decode) {
		t.Error("both sides begin with the same bytes")
	}
}

// TestPlaneMissing sees that a block that was not written is missed, though an earlier transfer has brought it.
func TestPlaneMissing(t *testing.T) {
	d := &planeDecode{}
	defer d.stop()
	_, err := d.open(PlaneOrder{PID: os.Getpid(), Rank: PlaneRankConfig{Which: "socket", Layout: PlaneLayout{Blocks: 2, BlockBytes: 8192, TP: 2}, Role: metadata.Decode, Name: "bench-decode", Run: 1}})
	if err != nil {
		t.Fatal(err)
	}
	r, shape := d.ranks[1], PlaneShape{Blocks: 2, Neighbours: true}
	r.pages(0, shape, func(to, from int) { binary.LittleEndian.PutUint64(r.memory[to:], planeWord(from, metadata.Prefill)) })
	if err := r.check(0, shape); err != nil {
		t.Fatalf("what is right is refused: %v", err)
	}
	if r.clear(0, shape); r.check(0, shape) == nil {
		t.Error("what was there before is taken for what came")
	}
}
