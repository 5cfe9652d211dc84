package main

import (
	"errors"
	"fmt"
	"os"

	"pdrouter/router/config"
)

// checkSources reads every file of engines as serve would, but for those left out.
func (l *loaded) checkSources(out map[string]bool) error {
	var errs []error
	for i := range l.Models {
		m := &l.Models[i]
		for _, at := range sourcesOf(m) {
			if at.source.File == "" || out[at.source.File] {
				continue
			}
			b, err := os.ReadFile(at.source.File)
			if err != nil {
				continue // said of the file already
			}
			if _, err := readEngines(*m, at.key, at.source.File, b); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func (l *loaded) whoAdmins() string {
	return l.Listen.Admin + l.Listen.AdminTLS.note() + "\ttokens of " + l.Auth.Admins.issuerNames()
}

// describeSource says where more engines of a list come from, for people; "" if from nowhere.
func describeSource(from config.Source) string {
	switch {
	case from.DNS != "":
		return "every address of " + from.DNS
	case from.File != "":
		return fmt.Sprintf("those of %s", from.File)
	}
	return ""
}
