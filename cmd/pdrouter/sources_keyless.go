package main

import (
	"errors"
	"os"
	"slices"

	"pdrouter/internal/configfile"
	"pdrouter/router/config"
)

// without has engines be left out from now on whose credentials cannot be read, if that is all that was wrong, and reports
// whether it is another set than before. What the configuration lists itself is not left out: with it nothing is applied. It is
// called by the owner of the configuration.
func (s *sources) without(l *configfile.Loaded, err error) bool {
	files := map[string]string{}
	for _, err := range each(err) {
		var key *config.KeyError
		if !errors.As(err, &key) || listedKey(l.Config, key.File) {
			return false
		}
		files[key.File] = key.Err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	more := false
	for file, why := range files {
		if _, known := s.keyless[file]; !known {
			s.keyless[file], more = why, true
		}
	}
	return more
}

// each returns the errors that err joins.
func each(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// listedKey reports whether an engine that the file lists names that file.
func listedKey(cfg config.Config, file string) bool {
	for i := range cfg.Models {
		for _, at := range configfile.EngineLists(&cfg.Models[i]) {
			for i := range *at.Engines {
				if slices.ContainsFunc((*at.Engines)[i].Files(), func(f config.EngineFile) bool { return *f.Path == file }) {
					return true
				}
			}
		}
	}
	return false
}

// keysCame looks for the files that could not be read, and reports whether one of them can be by now.
func (s *sources) keysCame() bool {
	var files []string
	s.mu.Lock()
	for file := range s.keyless {
		files = append(files, file)
	}
	s.mu.Unlock()
	came := false
	for _, file := range files {
		if configfile.Regular(file) != nil {
			continue
		}
		if f, err := os.Open(file); err == nil {
			f.Close()
			s.mu.Lock()
			delete(s.keyless, file)
			s.mu.Unlock()
			came = true
		}
	}
	return came
}
