package main

import (
	"path/filepath"
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

// readEngines returns what a file of engines holds for a list of the model. It reports every mistake, each with file and line.
// Paths in it are relative to the folder that it stands in, and no others than mayName allows are opened.
func readEngines(m config.Model, list, path string, b []byte) ([]config.Engine, error) {
	var file engineFile
	f := yamlfile.Decode(path, b, &file)
	if file.Engines == nil {
		f.Check(field.Errorf("engines", "is missing; want a list of engines, [] for none"))
		return nil, f.Err()
	}
	engines := *file.Engines
	alone := config.Model{Name: m.Name, Connector: m.Connector, ForwardAuthorization: m.ForwardAuthorization}
	for _, at := range sourcesOf(&alone) {
		if at.key == list {
			*at.engines = engines
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
			if err := mayName(m, named); err != nil {
				f.Check(field.Under(element("engines", i), err))
				continue
			}
			err := regular(*named.Path)
			if err == nil {
				err = readable(*named.Path)
			}
			if err != nil {
				f.Check(field.Errorf(element("engines", i)+"."+named.Key, "cannot be used: %v", err))
			}
		}
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return engines, nil
}
