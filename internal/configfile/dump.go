package configfile

import (
	"bytes"
	_ "embed"
	"errors"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Schema is the JSON Schema of the configuration file, made from the types and comments of the configuration by a test.
//
//go:embed schema.json
var Schema string

// PolicySchema is the JSON Schema of a policy file, EnginesSchema that of a file of engines.
var (
	//go:embed schema-policy.json
	PolicySchema string
	//go:embed schema-engines.json
	EnginesSchema string
)

// Dump returns the configuration as a file: what it says, and every default that is not zero. A zero stands for its default, so that what
// is left out means the same.
func (l *Loaded) Dump() ([]byte, error) {
	c := l.File
	c.Config = c.WithDefaults()
	if c.Policy.File == "" {
		c.Policy.Config = c.Policy.WithDefaults()
	}
	if !reflect.ValueOf(c.Policy.Shadow).IsZero() {
		c.Policy.Shadow = c.Policy.Shadow.WithDefaults()
	}
	if c.Metadata.Store == "redis" {
		c.Metadata.Redis = c.Metadata.Redis.WithDefaults()
	}
	return Marshal(c)
}

// Marshal returns a configuration as a file, without what is zero.
func Marshal(c File) ([]byte, error) {
	doc, err := nodeOf(reflect.ValueOf(c))
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err = errors.Join(enc.Encode(doc), enc.Close())
	return b.Bytes(), err
}

// nodeOf returns a value as YAML, without the fields of structs that are zero or empty. A pointer that is set is kept, also to a zero:
// there it means something else than the default.
func nodeOf(v reflect.Value) (*yaml.Node, error) {
	switch v.Kind() {
	case reflect.Pointer:
		return nodeOf(v.Elem())
	case reflect.Struct:
		n := &yaml.Node{Kind: yaml.MappingNode}
		err := addFields(n, v)
		return n, err
	case reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			one, err := nodeOf(v.Index(i))
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, one)
		}
		return n, nil
	case reflect.Map:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, key := range slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }) {
			one, err := nodeOf(v.MapIndex(key))
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key.String()}, one)
		}
		return n, nil
	}
	n := new(yaml.Node)
	return n, n.Encode(v.Interface())
}

// addFields adds a struct's fields to a mapping.
func addFields(n *yaml.Node, v reflect.Value) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if options == "inline" {
			if err := addFields(n, v.Field(i)); err != nil {
				return err
			}
			continue
		}
		if name == "" || name == "-" || v.Field(i).IsZero() {
			continue
		}
		one, err := nodeOf(v.Field(i))
		if err != nil {
			return err
		}
		if one.Kind == yaml.ScalarNode || len(one.Content) > 0 {
			key := new(yaml.Node)
			if err := key.Encode(name); err != nil { // which quotes a name that YAML reads as something else
				return err
			}
			n.Content = append(n.Content, key, one)
		}
	}
	return nil
}
