package yamlfile

import (
	"reflect"
	"strings"

	"pdrouter/internal/field"
)

// pointed takes pointers off t.
func pointed(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// is reports whether the decoder calls t by this name. A type that has a short form decodes its section as another type.
func is(t reflect.Type, name string) bool {
	return pointed(t).String() == name || reflect.PointerTo(pointed(t)).Implements(shortForm)
}

var shortForm = reflect.TypeFor[interface{ UnmarshalYAML(func(any) error) error }]()

// below returns the type of the value that a key has in a section or a list of type t, nil if there is none.
func below(t reflect.Type, key string) reflect.Type {
	if t == nil {
		return nil
	}
	switch t = pointed(t); t.Kind() {
	case reflect.Struct:
		field, _ := fieldType(t, key)
		return field
	case reflect.Map, reflect.Slice, reflect.Array:
		return t.Elem()
	}
	return nil
}

// tag returns the YAML key of a field, and whether the field's own keys stand in its place.
func tag(f reflect.StructField) (key string, inline bool) {
	key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	if key == "" {
		key = strings.ToLower(f.Name)
	}
	return key, strings.Contains(options, "inline")
}

// keysOf lists the keys of a struct for people, "" if t is none or nil.
func keysOf(t reflect.Type) string {
	if t == nil || pointed(t).Kind() != reflect.Struct {
		return ""
	}
	return field.OneOf(allKeys(pointed(t)))
}

func allKeys(t reflect.Type) []string {
	var keys []string
	for f := range t.Fields() {
		key, inline := tag(f)
		switch {
		case inline:
			keys = append(keys, allKeys(pointed(f.Type))...)
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
			if in, ok := fieldType(pointed(f.Type), key); ok {
				return in, true
			}
		} else if name == key {
			return f.Type, true
		}
	}
	return nil, false
}
