package control

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzWatch: whatever an engine streams, no line longer than the bound is taken in, and an event that is taken in is
// the same when it is streamed again.
func FuzzWatch(f *testing.F) {
	f.Add([]byte("data: {\"transfer\":\"x\",\"event\":\"ready\",\"k\":1,\"n\":2}\n\n: beat\n\n"))
	f.Add([]byte("data: {}\ndata: {\"event\":7}\n"))
	f.Add(append([]byte("data: "), bytes.Repeat([]byte{' '}, maxLine)...))
	f.Add([]byte("data: {\"event\":\"\xff\"}\r\nevent: x"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		var got []Event
		heard := 0
		err := readEvents(bytes.NewReader(stream), func() { heard++ }, func(e Event) { got = append(got, e) })
		if len(got) > heard {
			t.Fatalf("%d events in %d lines", len(got), heard)
		}
		long := false
		for line := range bytes.SplitSeq(stream, []byte{'\n'}) {
			long = long || len(line) > maxLine
		}
		if long && err == nil {
			t.Error("a line longer than the bound was taken in")
		}
		var again bytes.Buffer
		for _, e := range got {
			b, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			again.WriteString("data: " + string(b) + "\n")
		}
		if again.Len() > maxLine {
			return // escaped, a line may have grown
		}
		var same []Event
		if err := readEvents(&again, func() {}, func(e Event) { same = append(same, e) }); err != nil || !cmp.Equal(got, same) {
			t.Errorf("%+v comes back as %+v, %v", got, same, err)
		}
	})
}
