package yamlfile

import (
	"reflect"
	"strings"
)

// wantKeys lists the keys that the section around key may hold, "" if that section is no struct.
func wantKeys(t reflect.Type, key string) string {
	parts := strings.FieldsFunc(key, func(r rune) bool { return r == '.' })
	t = plain(t)
	for _, part := range parts[:max(0, len(parts)-1)] {
		part, _, _ = strings.Cut(part, "[")
		if t.Kind() != reflect.Struct {
			return ""
		}
		field, ok := fieldType(t, part)
		if !ok {
			return ""
		}
		t = plain(field)
	}
	if t.Kind() != reflect.Struct {
		return ""
	}
	keys := keysOf(t)
	switch len(keys) {
	case 0:
		return ""
	case 1:
		return "; want " + keys[0]
	default:
		last := len(keys) - 1
		return "; want " + strings.Join(keys[:last], ", ") + " or " + keys[last]
	}
}

// plain takes pointers and lists off t.
func plain(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t
}

// tag returns the YAML key of a field, and whether the field's own keys stand in its place.
func tag(f reflect.StructField) (key string, inline bool) {
	key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	if key == "" {
		key = strings.ToLower(f.Name)
	}
	return key, strings.Contains(options, "inline")
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for f := range t.Fields() {
		key, inline := tag(f)
		switch {
		case inline:
			keys = append(keys, keysOf(plain(f.Type))...)
		case f.IsExported() && key != "-":
			keys = append(keys, key)
		}
	}
	return keys
}

func fieldType(t reflect.Type, key string) (reflect.Type, bool) {
	for f := range t.Fields() {
		name, inline := tag(f)
		if inline {
			if in, ok := fieldType(plain(f.Type), key); ok {
				return in, true
			}
		} else if name == key {
			return f.Type, true
		}
	}
	return nil, false
}
