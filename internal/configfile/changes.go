package configfile

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"

	"pdrouter/internal/field"
	"pdrouter/internal/yamlfile"
)

// LiveKeys are what a reload may change, with all below them.
func LiveKeys() []string {
	return []string{"listen", "models", "timeouts", "limits", "health", "priorities", "queue", "migration", "strict", "media",
		"isolate_prefix_cache", "prefix_cache_secret_file", "policy", "auth", "tenants", "log"}
}

// FixedKeys are what it may not, though some are below the others: parts of the gateway that live as long as it does were
// built from them.
func FixedKeys() []string {
	return []string{"metadata", "reclaim", "replicas", "tracing", "advanced", "auth.records", "limits.recent", "limits.concurrent", "limits.handshakes", "limits.handshakes_per_engine", "timeouts.probe", "timeouts.read", "timeouts.idle"}
}

// Fixed reports whether the key cannot change while the gateway runs. A key that is in neither list cannot.
func Fixed(key string) bool {
	under := func(section string) bool {
		rest, in := strings.CutPrefix(key, section)
		return in && (rest == "" || rest[0] == '.' || rest[0] == '[')
	}
	return slices.ContainsFunc(FixedKeys(), under) || !slices.ContainsFunc(LiveKeys(), under)
}

// OnlyLive reports the keys that differ from what is in use and cannot change while the gateway runs, each with its line.
func (l *Loaded) OnlyLive(changed []string) error {
	var errs []error
	for _, key := range changed {
		if Fixed(key) {
			errs = append(errs, field.Errorf(key, "is not what it was when the gateway started; want that again, or a restart"))
		}
	}
	return l.At(errors.Join(errs...))
}

// At puts file and line before each mistake.
func (l *Loaded) At(err error) error {
	if err == nil {
		return nil
	}
	b, readErr := os.ReadFile(l.Path)
	if readErr != nil {
		return err
	}
	f := yamlfile.Decode(l.Path, b, new(File))
	f.Check(err)
	if said := f.Err(); said != nil {
		return said
	}
	return err
}

// Changes lists the dotted keys in which another configuration differs from this one, in the order of the reference.
func (l *Loaded) Changes(other *Loaded) []string {
	keys := changed("", reflect.ValueOf(l.File), reflect.ValueOf(other.File))
	if l.Policy.File != "" && !slices.Contains(keys, "policy.file") && !reflect.DeepEqual(l.Routing, other.Routing) {
		keys = append(keys, "policy.file")
	}
	return keys
}

func changed(key string, a, b reflect.Value) []string {
	var keys []string
	switch a.Kind() {
	case reflect.Struct:
		for i := range a.NumField() {
			f := a.Type().Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			below := strings.TrimPrefix(key+"."+name, ".")
			switch {
			case !f.IsExported() && !f.Anonymous || name == "-":
				continue
			case options == "inline":
				below = key
			}
			keys = append(keys, changed(below, a.Field(i), b.Field(i))...)
		}
		return keys
	case reflect.Slice:
		if a.Len() == b.Len() && a.Type().Elem().Kind() == reflect.Struct {
			for i := range a.Len() {
				keys = append(keys, changed(Element(key, i), a.Index(i), b.Index(i))...)
			}
			return keys
		}
	}
	if !reflect.DeepEqual(a.Interface(), b.Interface()) {
		keys = append(keys, key)
	}
	return keys
}
