package bench

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"pdrouter/metadata"
)

// beside starts the decode side of a plane run in this process.
func beside(t *testing.T) *planeProcess {
	t.Helper()
	orders, in := io.Pipe()
	out, answers := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- ServePlane(t.Context(), orders, answers) }()
	return &planeProcess{in: in, out: out, pid: os.Getpid(), wait: func() error { return <-ended }}
}

func openStage(t *testing.T, row planeRowKind) *planeStage {
	t.Helper()
	s, err := openPlaneStage(beside(t), 1, row, io.Discard)
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

// TestBesideRows measures every kind of row once, small, over tcp's sockets.
func TestBesideRows(t *testing.T) {
	if testing.Short() {
		t.Skip("pushes a few hundred transfers")
	}
	small := planeLayout{Blocks: 64, BlockBytes: 4096}
	for _, row := range []planeRowKind{
		{"bandwidth", "socket", small, 16, bandwidth("bare socket loop", 0.8)},
		{"copy", "socket", small, 16, bandwidth("plain copy", 0.8)},
		{"kernel", "socket", small, 16, bandwidth("copy by the kernel", 0.8)},
		{"register", "socket", small, 2, register(100)},
		{"release", "socket", small, 2, release(50)},
		{"outstanding", "socket", small, 2, outstanding(2, 20, 2)},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := openStage(t, row)
			got, err := row.measure(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if got.Ours.Median <= 0 || got.Beside[0].Median <= 0 || got.Beside[0].Ratio.Median <= 0 || s.took != "socket" {
				t.Errorf("%+v over %s; want figures above 0, over sockets", got, s.took)
			}
			var b bytes.Buffer
			r := &Report{Suite: "plane", Rows: []Row{got}}
			if r.table(&b); !strings.Contains(b.String(), row.name) || !strings.Contains(r.Markdown(), row.name) {
				t.Errorf("%s is not in the report", row.name)
			}
		})
	}
}

// TestPlaneVoid makes a run whose bytes are wrong, or took another path, void.
func TestPlaneVoid(t *testing.T) {
	row := planeRowKind{"bandwidth", "socket", planeLayout{Blocks: 64, BlockBytes: 4096}, 16, nil}
	s := openStage(t, row)
	if _, err := s.path(planeAnswer{Sockets: 1, Memory: 1}); !errors.Is(err, errVoid) {
		t.Errorf("a path that is not the row's: %v; want %v", err, errVoid)
	}
	for i := range s.rank.memory { // so that whatever is pushed is not what the other side expects
		s.rank.memory[i]++
	}
	if _, err := s.push(1); err == nil || !strings.Contains(err.Error(), "holds") {
		t.Errorf("wrong bytes were taken for right: %v", err)
	}
	if planeWord(8, metadata.Prefill) == planeWord(8, metadata.Decode) {
		t.Error("both sides begin with the same bytes")
	}
}
