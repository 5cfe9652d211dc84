package main

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"

	"pdrouter/internal/field"
	"pdrouter/internal/yamlfile"
)

// liveKeys are what a reload may change, with all below them.
func liveKeys() []string {
	return []string{"listen", "models", "timeouts", "limits", "health", "priorities", "strict", "media",
		"isolate_prefix_cache", "prefix_cache_secret_file", "policy", "auth", "tenants", "log"}
}

// fixedKeys are what it may not, though some are below the others: parts of the gateway that live as long as it does were
// built from them.
func fixedKeys() []string {
	return []string{"metadata", "reclaim", "replicas", "advanced", "auth.records", "limits.recent", "limits.concurrent", "limits.handshakes", "limits.handshakes_per_engine", "timeouts.probe", "timeouts.read", "timeouts.idle"}
}

// fixed reports whether the key cannot change while the gateway runs. A key that nobody has thought of cannot.
func fixed(key string) bool {
	under := func(section string) bool {
		rest, in := strings.CutPrefix(key, section)
		return in && (rest == "" || rest[0] == '.' || rest[0] == '[')
	}
	return slices.ContainsFunc(fixedKeys(), under) || !slices.ContainsFunc(liveKeys(), under)
}

// onlyLive reports the keys that differ from what is in use and cannot change while the gateway runs, each with its line.
func (l *loaded) onlyLive(changed []string) error {
	var errs []error
	for _, key := range changed {
		if fixed(key) {
			errs = append(errs, field.Errorf(key, "is not what it was when the gateway started; want that again, or a restart"))
		}
	}
	return l.at(errors.Join(errs...))
}

// at puts file and line before each mistake.
func (l *loaded) at(err error) error {
	if err == nil {
		return nil
	}
	b, readErr := os.ReadFile(l.path)
	if readErr != nil {
		return err
	}
	f := yamlfile.Decode(l.path, b, new(fileConfig))
	f.Check(err)
	if said := f.Err(); said != nil {
		return said
	}
	return err
}

// changes lists the dotted keys in which another configuration differs from this one, in the order of the reference.
func (l *loaded) changes(other *loaded) []string {
	keys := changed("", reflect.ValueOf(l.fileConfig), reflect.ValueOf(other.fileConfig))
	if l.Policy.File != "" && !slices.Contains(keys, "policy.file") && !reflect.DeepEqual(l.policy, other.policy) {
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
				keys = append(keys, changed(element(key, i), a.Index(i), b.Index(i))...)
			}
			return keys
		}
	}
	if !reflect.DeepEqual(a.Interface(), b.Interface()) {
		keys = append(keys, key)
	}
	return keys
}
