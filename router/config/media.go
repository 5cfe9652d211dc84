package config

import (
	"fmt"
	"strings"
)

// Media says which URLs of images, sounds and videos bodies may contain. The engines fetch them from within their network. The
// gateway only reads the URL, and resolves no names. Data URLs are always allowed.
type Media struct {
	// AllowPrivate allows hosts that are not of the public Internet: private, loopback and link-local addresses,
	// localhost, names without a dot, names ending in .local, .localhost, .localdomain, .internal, .lan, .intranet, .home.arpa or
	// .svc, the metadata services of clouds, and files. Default false: 400 media_host.
	AllowPrivate bool `yaml:"allow_private"`
	// Hosts are the only hosts that bodies may name. An entry matches exactly; one that begins with a dot matches every name that ends
	// in it. Default: any that allow_private does not refuse. A public name may resolve to a private address: only this list and the
	// engines' own rules prevent that.
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
