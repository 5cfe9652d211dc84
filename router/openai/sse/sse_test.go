package sse

import (
	"errors"
	"strings"
	"testing"
)

func TestSSEFramesBound(t *testing.T) {
	event := "data: " + strings.Repeat("x", 100) + "\n\n"
	f := NewFrames(len(event))
	for range 100 {
		if err := f.Push([]byte(event[:50])); err != nil {
			t.Fatal(err)
		}
		if err := f.Push([]byte(event[50:] + event)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got, ok := f.Next(); !ok || string(got) != event {
				t.Fatalf("got %q %v", got, ok)
			}
		}
	}
	if cap(f.buf) > 8*len(event) {
		t.Errorf("the buffer grew to %d bytes for events of %d", cap(f.buf), len(event))
	}
	f = NewFrames(len(event) - 1)
	if err := f.Push([]byte(event)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("whole event: got %v", err)
	}
	f = NewFrames(10)
	if err := f.Push([]byte("data: abcdefgh")); !errors.Is(err, ErrTooLarge) {
		t.Errorf("unfinished event: got %v", err)
	}
}
