package overhead

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseTrace(t *testing.T) {
	const text = `13762 read(0x3, 0x7ffd47a440e8, 0x340)  = 0x340
13762 write(0x1, 0x7ffd47a440e8, 0x10 <unfinished ...>
13783 epoll_pwait(0x4, 0xc000012, 0x80, 0, 0, 0) = 0
13762 <... write resumed>)              = 16
13783 read(0x7, 0xc000100, 0x1000)      = -1 EAGAIN (Resource temporarily unavailable)
7     futex(0x9c3, 0x80, 0, 0, 0, 0 <unfinished ...>
13783 --- SIGURG {si_signo=SIGURG, si_code=SI_TKILL} ---
13783 <... read resumed>)               = 0x4
7     <... futex resumed>)              = ?
7     +++ exited with 0 +++
`
	got, err := parseTrace(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]int{"read": 2, "write": 1, "epoll_pwait": 1, "futex": 1}, got.byName); d != "" {
		t.Error(d)
	}
	if got.all() != 5 || got.moves() != 3 || got.bytes != 0x340+16+4 {
		t.Errorf("%d calls, %d of them moves, %d bytes; want 5, 3 and %d", got.all(), got.moves(), got.bytes, 0x340+16+4)
	}
	if got, want := got.often(20), "read 0.1, epoll_pwait 0.1, futex 0.1, write 0.1"; got != want {
		t.Errorf("got %q; want %q", got, want)
	}
	for _, bad := range []string{"1 read(0x1) = many", "1 <... read suspended>) = 1"} {
		if got, err := parseTrace(strings.NewReader(bad)); err == nil {
			t.Errorf("%q: got %+v; want an error", bad, got)
		}
	}
}

// TestAttach counts the calls of a process that copies what it is given.
func TestAttach(t *testing.T) {
	copier := exec.CommandContext(t.Context(), "cat")
	in, err := copier.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := copier.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := copier.Start(); err != nil {
		t.Skip(err)
	}
	defer func() {
		in.Close()
		if err := copier.Wait(); err != nil {
			t.Error(err)
		}
	}()
	say := func() {
		if _, err := io.WriteString(in, "abc"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
	}
	say() // it is cat by now, and waits for more
	traced, err := attach(t.Context(), copier.Process.Pid, "")
	if errors.Is(err, errNoTrace) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	seen := func() calls {
		f, err := os.Open(traced.file)
		if err != nil {
			return calls{} // strace has not made it yet
		}
		defer f.Close()
		c, _ := parseTrace(f) // its last line may not be whole
		return c
	}
	before := calls{}
	for before.byName["write"] == 0 { // what it does in the moment of being attached to may be missed
		say()
		before = seen()
	}
	const more = 5
	for range more {
		say()
	}
	got, err := traced.end()
	if err != nil {
		t.Fatal(err)
	}
	// One may have been written out, and be in no line before.
	if n := got.byName["write"] - before.byName["write"]; n < more || n > more+1 || got.byName["read"] < more || got.bytes < 2*3*(more-1) {
		t.Errorf("got %+v after %+v; want %d writes more, with reads and 3 bytes each", got, before, more)
	}
}
