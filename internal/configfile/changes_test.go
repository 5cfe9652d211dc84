package configfile

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pdrouter/internal/golden"
)

// keysOf lists the keys of a configuration, with those of its sections; those of lists have [].
func keysOf(s reflect.Type, key string, above ...reflect.Type) []string {
	var all []string
	for i := range s.NumField() {
		f := s.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		inner, suffix := f.Type, ""
		for inner.Kind() == reflect.Slice || inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Map {
			if inner.Kind() != reflect.Pointer {
				suffix = "[]"
			}
			inner = inner.Elem()
		}
		below := strings.TrimPrefix(key+"."+name, ".") + suffix
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case options == "inline":
			all = append(all, keysOf(f.Type, key, above...)...)
		case inner.Kind() == reflect.Struct && inner != reflect.TypeFor[time.Time]() && !slices.Contains(above, inner):
			all = append(all, keysOf(inner, below, append(above, inner)...)...)
		default:
			all = append(all, below)
		}
	}
	return all
}

// TestEveryKeyIsLiveOrFixed holds what a reload may change against a list: a new key is on neither side until somebody has
// thought of it. go test ./internal/configfile -run LiveOrFixed -update writes the list anew.
func TestEveryKeyIsLiveOrFixed(t *testing.T) {
	var b strings.Builder
	under := func(key string, sections []string) bool {
		return slices.ContainsFunc(sections, func(s string) bool {
			rest, in := strings.CutPrefix(key, s)
			return in && (rest == "" || rest[0] == '.' || rest[0] == '[')
		})
	}
	for _, key := range keysOf(reflect.TypeFor[File](), "") {
		kind := "live"
		if Fixed(key) {
			kind = "fixed"
		}
		b.WriteString(kind + " " + key + "\n")
		if !under(key, LiveKeys()) && !under(key, FixedKeys()) {
			t.Errorf("%s is neither live nor fixed", key)
		}
		if kind == "fixed" {
			if err := (&Loaded{Path: "none"}).OnlyLive([]string{key}); err == nil || !strings.Contains(err.Error(), key+" is not what it was") {
				t.Errorf("%s: %v", key, err)
			}
		}
	}
	golden.Equal(t, "testdata/reload_keys.txt", b.String()) // of a new key, decide whether a reload changes it
}
