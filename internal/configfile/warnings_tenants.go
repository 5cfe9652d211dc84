package configfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"pdrouter/auth"
)

// tenantWarnings are the names under tenants.named that are nobody's: of no API key, and without the | of a token's tenant.
// There are none if the file of API keys cannot be read.
func (l *Loaded) tenantWarnings() []string {
	has := func(string) bool { return false }
	if l.Auth.Clients.APIKeysFile != "" {
		keys, err := auth.LoadAPIKeys(l.Auth.Clients.APIKeysFile)
		if err != nil {
			return nil
		}
		has = keys.Has
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(l.Tenants.Named)) {
		if !strings.Contains(name, "|") && !has(name) {
			all = append(all, fmt.Sprintf("tenants.named.%s limits nobody: no API key has this name, and the tenants of tokens are called issuer|subject", name))
		}
	}
	return all
}
