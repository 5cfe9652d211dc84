package fleetview

import (
	"errors"
	"os"
	"slices"

	"pdrouter/internal/configfile"
	"pdrouter/internal/field"
	"pdrouter/router/config"
)

// LeaveOut has engines be left out from now on whose credentials cannot be read, if that is all that was wrong, and reports
// whether it is another set than before. What the configuration lists itself is not left out: with it nothing is applied. It is
// called by the owner of the configuration.
func (v *View) LeaveOut(l *configfile.Loaded, err error) bool {
	files := map[string]string{}
	for _, err := range field.Split(err) {
		var key *config.KeyError
		if !errors.As(err, &key) || listedKey(l.Config, key.File) {
			return false
		}
		files[key.File] = key.Err.Error()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	more := false
	for file, why := range files {
		if _, known := v.unreadable[file]; !known {
			v.unreadable[file], more = why, true
		}
	}
	return more
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

// readable looks for the files that could not be read, and reports whether one of them can be by now.
func (v *View) readable() bool {
	var files []string
	v.mu.Lock()
	for file := range v.unreadable {
		files = append(files, file)
	}
	v.mu.Unlock()
	any := false
	for _, file := range files {
		if configfile.Regular(file) != nil {
			continue
		}
		if f, err := os.Open(file); err == nil {
			f.Close()
			v.mu.Lock()
			delete(v.unreadable, file)
			v.mu.Unlock()
			any = true
		}
	}
	return any
}
