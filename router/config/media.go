package config

import (
	"fmt"
	"strings"
)

// Media says where the images, sounds and videos that bodies name by URL may be. It is the engines that fetch them, from
// within their network; the gateway only reads the URL, and asks nobody for addresses. URLs with data in them are always fine.
type Media struct {
	// AllowPrivate lets bodies name hosts that are not of the public Internet: private, loopback and link-local addresses,
	// localhost, names without a dot, names ending in .local, .localhost, .localdomain, .internal, .lan, .intranet, .home.arpa or
	// .svc, the metadata services of clouds, and files. Default false: 400 media_host.
	AllowPrivate bool `yaml:"allow_private"`
	// Hosts are the only ones that bodies may name, each exactly or, with a dot before it, with all that end in it.
	// Default: any that allow_private does not refuse. A name of the public Internet may have a private address, which only
	// this list, and the engines' own rules, keep out.
	Hosts []string `yaml:"hosts"`
}

// validate reports the mistakes of the section media.
func (m Media) validate(v *faults) {
	for i, h := range m.Hosts {
		if h == "" || h == "." || strings.ContainsAny(h, "/:@ *") || h != strings.ToLower(h) {
			v.add(fmt.Sprintf("media.hosts[%d]", i), fmt.Sprintf("is %q", h), "a host name in small letters, with a dot before it for all that end in it")
		}
	}
}
