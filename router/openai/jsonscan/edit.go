package jsonscan

// Span is where a value lies in a body; the zero span is no value.
type Span struct{ From, To int }

func (s Span) Of(b []byte) []byte { return b[s.From:s.To] }

// Edit replaces the bytes of a span.
type Edit struct {
	At   Span
	With []byte
}

// Sorted sorts the edits by where they are, and returns them.
func Sorted(edits []Edit) []Edit {
	for i := range edits { // few: by insertion
		for j := i; j > 0 && edits[j].At.From < edits[j-1].At.From; j-- {
			edits[j], edits[j-1] = edits[j-1], edits[j]
		}
	}
	return edits
}

// Splice returns b with the edits, which do not overlap.
func Splice(b []byte, edits []Edit) []byte {
	size := len(b)
	for _, e := range Sorted(edits) {
		size += len(e.With) - (e.At.To - e.At.From)
	}
	out, from := make([]byte, 0, size), 0
	for _, e := range edits {
		out = append(append(out, b[from:e.At.From]...), e.With...)
		from = e.At.To
	}
	return append(out, b[from:]...)
}

// CutMember is the span to take out for one member, so that the commas left are right: with the comma after it as long as
// no member before it was kept, else with the comma before it. run counts the first members taken out.
func CutMember(index, comma, start, end, after int, run *int) (int, int) {
	switch {
	case index != *run:
		return comma, end
	case after >= 0:
		*run++
		return start, after + 1
	default:
		*run++
		return start, end
	}
}
