package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

const maxJSONDepth = 8

// strictObject returns the values of a JSON object. It refuses what other readers of the same bytes might understand
// differently: a name that occurs twice at any level, or that differs from another only in case, bytes after the
// object, and invalid UTF-8.
func strictObject(b []byte) (map[string]any, error) {
	if !utf8.Valid(b) {
		return nil, errors.New("invalid UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	v, err := strictValue(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("bytes after the end")
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not an object")
	}
	return m, nil
}

func strictValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxJSONDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, errors.New("broken JSON")
	}
	switch t {
	case json.Delim('{'):
		m, folded := map[string]any{}, map[string]bool{}
		for d.More() {
			t, err := d.Token()
			name, ok := t.(string)
			if err != nil || !ok {
				return nil, errors.New("broken JSON")
			}
			if fold := strings.ToLower(strings.ToUpper(name)); folded[fold] {
				return nil, errors.New("a name occurs twice")
			} else {
				folded[fold] = true
			}
			if m[name], err = strictValue(d, depth+1); err != nil {
				return nil, err
			}
		}
		_, err = d.Token()
		return m, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := strictValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return list, err
	}
	return t, nil
}
