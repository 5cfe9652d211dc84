package router

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var streams = []struct {
	name  string
	in    string
	kinds []eventKind
}{
	{"plain", "data: {\"a\":1}\n\ndata: [DONE]\n\n", []eventKind{eventData, eventDone}},
	{"CRLF", "data: {}\r\n\r\ndata: [DONE]\r\n\r\n", []eventKind{eventData, eventDone}},
	{"no space", "data:{}\n\ndata:[DONE]\n\n", []eventKind{eventData, eventDone}},
	{"comments", ": ping\n\ndata: {}\n\n: ping\n\ndata: [DONE]\n\n",
		[]eventKind{eventComment, eventData, eventComment, eventDone}},
	{"comment within the last event", "data: {}\n\n: x\ndata: [DONE]\n\n", []eventKind{eventData, eventDone}},
	{"bytes behind the end", "data: [DONE]\n\n: bye\n\n", []eventKind{eventDone, eventComment}},
	{"content ends in the word", "data: {\"text\":\"data: [DONE]\"}\n\n", []eventKind{eventData}},
	{"content is the word", "data: \"[DONE]\"\n\n", []eventKind{eventData}},
	{"escaped line end before the word", "data: {\"text\":\"\\n\\ndata: [DONE]\\n\\n\"}\n\n", []eventKind{eventData}},
	{"second line of an event", "data: {}\ndata: [DONE]\n\n", []eventKind{eventData}},
	{"first line of an event", "data: [DONE]\ndata: {}\n\n", []eventKind{eventData}},
	{"no blank line", "data: {}\n\ndata: [DONE]\n", []eventKind{eventData}},
	{"no line end", "data: {}\n\ndata: [DONE]", []eventKind{eventData}},
	{"bytes behind the word", "data: [DONE] \n\ndata: [DONE]]\n\ndata: [DONE]\r\r\n\n",
		[]eventKind{eventData, eventData, eventData}},
	{"bytes before the word", " data: [DONE]\n\ndata:  [DONE]\n\nxdata: [DONE]\n\n",
		[]eventKind{eventComment, eventData, eventComment}},
	{"error", "data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n", []eventKind{eventError, eventDone}},
	{"null error", "data: {\"error\":null,\"choices\":[]}\n\n", []eventKind{eventData}},
	{"content about an error", "data: {\"choices\":[{\"text\":\"\\\"error\\\":1\"}],\"x\":{\"error\":1}}\n\n",
		[]eventKind{eventData}},
	{"nothing", "", nil},
}

func TestSSEFrames(t *testing.T) {
	for _, tt := range streams {
		t.Run(tt.name, func(t *testing.T) {
			for size := 1; size <= len(tt.in)+1; size++ {
				var kinds []eventKind
				var joined []byte
				frames := newSSEFrames(len(tt.in) + 1)
				for rest := []byte(tt.in); len(rest) > 0; {
					part := rest[:min(size, len(rest))]
					rest = rest[len(part):]
					if err := frames.Push(part); err != nil {
						t.Fatal(err)
					}
					for event, ok := frames.Next(); ok; event, ok = frames.Next() {
						kinds = append(kinds, kindOf(event))
						joined = append(joined, event...)
					}
				}
				joined = append(joined, frames.buf[frames.last:]...)
				if diff := cmp.Diff(tt.kinds, kinds); diff != "" {
					t.Errorf("pieces of %d: kinds (-want +got):\n%s", size, diff)
				}
				if got, want := string(joined), tt.in; got != want {
					t.Errorf("pieces of %d: got %q, want %q", size, got, want)
				}
			}
		})
	}
}

func TestSSEFramesBound(t *testing.T) {
	event := "data: " + strings.Repeat("x", 100) + "\n\n"
	f := newSSEFrames(len(event))
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
	f = newSSEFrames(len(event) - 1)
	if err := f.Push([]byte(event)); !errors.Is(err, errEventTooLarge) {
		t.Errorf("whole event: got %v", err)
	}
	f = newSSEFrames(10)
	if err := f.Push([]byte("data: abcdefgh")); !errors.Is(err, errEventTooLarge) {
		t.Errorf("unfinished event: got %v", err)
	}
}

func FuzzSSE(f *testing.F) {
	for _, s := range streams {
		f.Add([]byte(s.in), byte(3))
	}
	f.Fuzz(func(t *testing.T, in []byte, cut byte) {
		whole := newSSEFrames(len(in) + 1)
		if err := whole.Push(in); err != nil {
			t.Fatal(err)
		}
		var want, got []eventKind
		for event, ok := whole.Next(); ok; event, ok = whole.Next() {
			want = append(want, kindOf(event))
		}
		frames := newSSEFrames(len(in) + 1)
		var joined []byte
		step := uint32(cut) + 1
		for rest := in; len(rest) > 0; {
			step = step*1664525 + 1013904223
			part := rest[:min(len(rest), int(step>>28)+1)]
			rest = rest[len(part):]
			if err := frames.Push(part); err != nil {
				t.Fatal(err)
			}
			for event, ok := frames.Next(); ok; event, ok = frames.Next() {
				joined = append(joined, event...)
				got = append(got, kindOf(event))
			}
		}
		if joined = append(joined, frames.buf[frames.last:]...); !bytes.Equal(joined, in) {
			t.Errorf("joined %q, want %q", joined, in)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("kinds in one piece and in several (-one +several):\n%s", diff)
		}
	})
}
