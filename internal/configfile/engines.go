package configfile

import (
	"path/filepath"
	"slices"
	"strings"

	"pdrouter/internal/field"
	"pdrouter/internal/yamlfile"
	"pdrouter/router/config"
)

// engineFile is a file of engines: a source.
type engineFile struct {
	// Engines are entries as in the lists of the configuration.
	Engines *[]config.Engine `yaml:"engines"`
}

// ReadEngines returns what a file of engines holds for a list of the model. It reports every mistake, each with file and line.
// Paths in it are relative to the folder that it stands in, and no others than mayName allows are opened.
func ReadEngines(m config.Model, list, path string, b []byte) ([]config.Engine, error) {
	var file engineFile
	f := yamlfile.Decode(path, b, &file)
	if file.Engines == nil {
		f.Check(field.Errorf("engines", "is missing; want a list of engines, [] for none"))
		return nil, f.Err()
	}
	engines := *file.Engines
	alone := config.Model{Name: m.Name, Connector: m.Connector, ForwardAuthorization: m.ForwardAuthorization}
	for _, at := range EngineLists(&alone) {
		if at.Key == list {
			*at.Engines = engines
		}
	}
	f.Check(field.Rename(config.Config{Models: []config.Model{alone}, Growing: true}.Validate(), func(path string) string {
		return strings.Replace(path, "models[0]."+list, "engines", 1)
	}))
	for i := range engines {
		for _, named := range engines[i].Files() {
			if *named.Path == "" {
				continue
			}
			if !filepath.IsAbs(*named.Path) {
				*named.Path = filepath.Join(filepath.Dir(path), *named.Path)
			}
			if err := MayName(m, named); err != nil {
				f.Check(field.Under(Element("engines", i), err))
				continue
			}
			err := Regular(*named.Path)
			if err == nil {
				err = readable(*named.Path)
			}
			if err != nil {
				f.Check(field.Errorf(Element("engines", i)+"."+named.Key, "cannot be used: %v", err))
			}
		}
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return engines, nil
}

// MayName reports why an engine of the model may not name that file, if the configuration does not list the engine. What the
// configuration names under another key is another file: a private key must not be sent as a credential.
func MayName(m config.Model, file config.EngineFile) error {
	path := *file.Path
	if path == "" {
		return nil
	}
	want := "one that the configuration names for the model"
	for _, at := range EngineLists(&m) {
		named := func(f config.EngineFile) bool { return f.Key == file.Key && absolute(*f.Path) == absolute(path) }
		if slices.ContainsFunc(NamedFiles(at), named) {
			return nil
		}
		if dir := at.Source.KeyDir; dir != "" {
			if within, err := filepath.Rel(absolute(dir), absolute(path)); err == nil && filepath.IsLocal(within) && within != "." && filepath.Clean(path) == path { // a .. behind a link leads elsewhere
				return nil
			}
			want += ", or one in its key_dir"
		}
	}
	return field.Errorf(file.Key, "is %.200q; want %s", path, want)
}

// absolute has paths be comparable where the configuration was named by a relative one; "" stays so.
func absolute(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// NamedFiles returns the files that the configuration names for engines of a list.
func NamedFiles(at EngineList) []config.EngineFile {
	all := at.Source.EngineFiles()
	for i := range *at.Engines {
		all = append(all, (*at.Engines)[i].Files()...)
	}
	return slices.DeleteFunc(all, func(f config.EngineFile) bool { return *f.Path == "" })
}
