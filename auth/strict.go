package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

const maxJSONDepth = 8

// strictObject returns the values of a JSON object, numbers as json.Number. It refuses what other readers of the same
// bytes might understand differently: a name that occurs twice at any level, or that differs from another only in case,
// bytes after the object, and invalid UTF-8.
func strictObject(b []byte) (map[string]any, error) {
	if !utf8.Valid(b) {
		return nil, errors.New("invalid UTF-8")
	}
	if !json.Valid(b) {
		return nil, errors.New("broken JSON")
	}
	r := strictReader{text: string(b)}
	v, err := r.value(0)
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not an object")
	}
	return m, nil
}

// strictReader reads JSON that is known to be valid, and only the bounds of its parts are left to find. The standard
// library's reader of tokens takes five times as long, and its reader of values does not see what occurs twice.
type strictReader struct {
	text string // what is left
}

func (r *strictReader) value(depth int) (any, error) {
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxJSONDepth)
	}
	switch r.next() {
	case '{':
		return r.object(depth)
	case '[':
		list := []any{}
		for r.text = r.text[1:]; r.more(']'); {
			v, err := r.value(depth + 1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case '"':
		return r.string()
	}
	end := strings.IndexAny(r.text, " \t\r\n,]}")
	if end < 0 {
		end = len(r.text)
	}
	word := r.text[:end]
	r.text = r.text[end:]
	switch word {
	case "true":
		return true, nil
	case "false":
		return false, nil
	case "null":
		return nil, nil
	}
	return json.Number(word), nil
}

func (r *strictReader) object(depth int) (map[string]any, error) {
	m := map[string]any{}
	var folded map[string]bool // of those names that are not written as they are compared
	for r.text = r.text[1:]; r.more('}'); {
		name, err := r.string()
		if err != nil {
			return nil, err
		}
		as := fold(name)
		if _, ok := m[as]; ok || folded[as] {
			return nil, errors.New("a name occurs twice")
		}
		if as != name {
			if folded == nil {
				folded = map[string]bool{}
			}
			folded[as] = true
		}
		r.next()
		r.text = r.text[1:] // the colon
		if m[name], err = r.value(depth + 1); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// next returns the first byte that is no space, and goes there.
func (r *strictReader) next() byte {
	r.text = strings.TrimLeft(r.text, " \t\r\n")
	if r.text == "" {
		return 0
	}
	return r.text[0]
}

// more goes to the next element of a list or an object, or behind its end.
func (r *strictReader) more(end byte) bool {
	switch r.next() {
	case end:
		r.text = r.text[1:]
		return false
	case ',':
		r.text = r.text[1:]
		r.next()
	}
	return true
}

// string reads a string.
func (r *strictReader) string() (string, error) {
	for i := 1; i < len(r.text); i++ {
		switch r.text[i] {
		case '\\':
			i++
		case '"':
			quoted := r.text[:i+1]
			r.text = r.text[i+1:]
			if strings.IndexByte(quoted, '\\') < 0 {
				return quoted[1:i], nil
			}
			var s string
			err := json.Unmarshal([]byte(quoted), &s)
			return s, err
		}
	}
	return "", errors.New("broken JSON")
}

// fold returns what is alike for names that readers may take for each other because they differ in case.
func fold(name string) string {
	for i := range len(name) {
		if c := name[i]; c >= utf8.RuneSelf || 'A' <= c && c <= 'Z' {
			return strings.ToLower(strings.ToUpper(name))
		}
	}
	return name
}
