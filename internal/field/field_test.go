package field_test

import (
	"errors"
	"testing"

	"pdrouter/internal/field"
)

// TestUnder: a section puts its key before each path, however deep the errors are joined, and leaves other errors as they are.
func TestUnder(t *testing.T) {
	other := errors.New("of no key")
	err := field.Under("timeouts", errors.Join(field.Errorf("read", "is %d; want more than 0", -1), nil,
		errors.Join(field.Errorf("idle", "is -2; want more than 0"), other)))
	if want := "timeouts.read is -1; want more than 0\ntimeouts.idle is -2; want more than 0\nof no key"; err.Error() != want {
		t.Errorf("got %q; want %q", err, want)
	}
	if all := field.Split(err); len(all) != 3 || !errors.Is(all[2], other) {
		t.Errorf("split into %q", all)
	}
	if e, ok := errors.AsType[*field.Error](err); !ok || e.Path != "timeouts.read" || e.Msg != "is -1; want more than 0" {
		t.Errorf("the first is %+v", e)
	}
	if err := field.Under("timeouts", nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}
