package memory

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"testing"
)

// TestCopyFromProcess copies more stretches than one call takes, from this process into itself, and nothing beside them.
func TestCopyFromProcess(t *testing.T) {
	const stretches, size = 2500, 16
	b, free, err := Allocate(3 * stretches * size)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := free(); err != nil {
			t.Error(err)
		}
	}()
	source, target := b[:stretches*size], b[stretches*size:] // every second stretch of the target is left alone
	for i := range source {
		source[i] = byte(i%251 + 1)
	}
	var to [][]byte
	var from []uint64
	want := make([]byte, len(target))
	for i := range stretches {
		at := (stretches - 1 - i) * size
		to, from = append(to, target[2*i*size:][:size]), append(from, Of(b).Base+uint64(at))
		copy(want[2*i*size:], source[at:][:size])
	}
	switch err := CopyFromProcess(os.Getpid(), to, from); {
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, fs.ErrPermission):
		t.Skip("SKIPPED:", err)
	case err != nil:
		t.Fatal(err)
	}
	if !bytes.Equal(target, want) {
		t.Error("other bytes were copied, or to another place")
	}
	if err := CopyFromProcess(os.Getpid(), to[:1], from[:2]); err == nil {
		t.Error("two stretches were copied into one")
	}
	if err := CopyFromProcess(os.Getpid(), [][]byte{nil}, from[:1]); err == nil {
		t.Error("nothing was copied")
	}
	if err := CopyFromProcess(os.Getpid(), to[:1], []uint64{0}); err == nil {
		t.Error("what is not there was copied")
	}
}
