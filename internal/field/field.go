// Package field has the error of one key of a configuration. The Validate method of each Config returns such errors, joined;
// internal/yamlfile adds the file and the line of the key. The package imports nothing of pdrouter and reads no file.
package field

import (
	"errors"
	"fmt"
	"strings"
)

// OneOf lists alternatives for messages: "a, b or c".
func OneOf(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// Error says what is wrong with one key.
type Error struct {
	Path string // the dotted key, such as "models[0].url", relative to the section that was validated
	Msg  string // follows the path in a sentence: `is "x"; want a URL`
}

// Errorf returns an Error with a formatted message.
func Errorf(path, format string, args ...any) error {
	return &Error{Path: path, Msg: fmt.Sprintf(format, args...)}
}

// Error returns the sentence.
func (e *Error) Error() string { return e.Path + " " + e.Msg }

// Under returns the errors that err joins, with the key of their section before each path.
func Under(section string, err error) error {
	return Rename(err, func(path string) string { return section + "." + path })
}

// Rename returns the errors that err joins, each path replaced by what rename makes of it. An error that is no Error stays as it is.
func Rename(err error, rename func(path string) string) error {
	all := Split(err)
	for i, one := range all {
		if e, ok := errors.AsType[*Error](one); ok {
			all[i] = &Error{Path: rename(e.Path), Msg: e.Msg}
		}
	}
	return errors.Join(all...)
}

// Split returns the errors that err joins, also those that a joined error joins; none for nil.
func Split(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error }) // errors.Join itself, never what it wraps
	if !ok {
		return []error{err}
	}
	var all []error
	for _, one := range joined.Unwrap() {
		all = append(all, Split(one)...)
	}
	return all
}
