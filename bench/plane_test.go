package bench

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

	"pdrouter/metadata"
)

// beside starts a rank's process of a plane run in this process.
func beside(t *testing.T) *planeProcess {
	t.Helper()
	orders, in := io.Pipe()
	out, answers := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- ServePlane(t.Context(), orders, answers) }()
	return newPlaneProcess(in, out, os.Getpid(), func() error { return <-ended })
}

func openStage(t *testing.T, which string, layout planeLayout) *planeStage {
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
	layout := planeLayout{Blocks: 64, BlockBytes: 4096, TP: 1}
	for _, tc := range []struct {
		which string
		tp    int
		row   planeRow
	}{
		{"socket", 1, bandwidthRow("socket", 4, planeShape{Blocks: 8})},
		{"socket", 1, bandwidthRow("memory", 4, planeShape{8, true})}, // its contenders: those of memory, over sockets
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
				if err := noNIXL(); err != nil {
					t.Skipf("SKIPPED: %v", err)
				}
			}
			layout.TP = tc.tp
			s := openStage(t, tc.which, layout)
			c, err := tc.row.of(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			c.name = tc.row.name
			for i := range c.contenders { // 1 ms of each says as much as a round here
				round := c.contenders[i].round
				c.contenders[i].round = func(ctx context.Context, _ time.Duration) (sample, error) { return round(ctx, time.Millisecond) }
			}
			rows, err := c.measure(t.Context(), Config{Rounds: 1, Others: 1e9, Refuse: 1000}, io.Discard)
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
				r := &Report{Suite: "plane", Rows: []Row{row}}
				if r.table(&b); !strings.Contains(b.String(), row.Name) {
					t.Errorf("%s is not in the report", row.Name)
				}
			}
		})
	}
}

// TestPlaneVoid makes a run whose bytes are wrong, or took another path, void.
func TestPlaneVoid(t *testing.T) {
	s := openStage(t, "socket", planeLayout{Blocks: 64, BlockBytes: 4096, TP: 1})
	if err := s.path(planeAnswer{Sockets: 1, Memory: 1}); !errors.Is(err, errVoid) {
		t.Errorf("a path that is not the row's: %v; want %v", err, errVoid)
	}
	for i := range s.rank.memory { // so that whatever is pushed is not what the other side expects
		s.rank.memory[i]++
	}
	if _, err := s.push(1, planeShape{Blocks: 16}); err == nil || !strings.Contains(err.Error(), "holds") {
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
	_, err := d.open(planeOrder{PID: os.Getpid(), Rank: planeRankConfig{Which: "socket", Layout: planeLayout{Blocks: 2, BlockBytes: 8192, TP: 2}, Role: metadata.Decode, Name: "bench-decode", Run: 1}})
	if err != nil {
		t.Fatal(err)
	}
	r, shape := d.ranks[1], planeShape{Blocks: 2, Neighbours: true}
	r.pages(0, shape, func(to, from int) { binary.LittleEndian.PutUint64(r.memory[to:], planeWord(from, metadata.Prefill)) })
	if err := r.check(0, shape); err != nil {
		t.Fatalf("what is right is refused: %v", err)
	}
	if r.clear(0, shape); r.check(0, shape) == nil {
		t.Error("what was there before is taken for what came")
	}
}
