package main

import "path/filepath"

// resolve makes the relative paths of c relative to dir. It changes c and what its lists share.
func (c *fileConfig) resolve(dir string) {
	for _, p := range c.paths() {
		if *p.at != "" && !filepath.IsAbs(*p.at) {
			*p.at = filepath.Join(dir, *p.at)
		}
	}
}

// pathAt is a path in a configuration and its dotted key.
type pathAt struct {
	key string
	at  *string
}

// paths returns every path of c that is set or could be.
func (c *fileConfig) paths() []pathAt {
	all := []pathAt{
		{"policy.file", &c.Policy.File},
		{"prefix_cache_secret_file", &c.PrefixCacheSecretFile},
		{"auth.clients.api_keys_file", &c.Auth.Clients.APIKeysFile},
		{"auth.records.key_file", &c.Auth.Records.KeyFile},
		{"auth.control_token_file", &c.Auth.ControlTokenFile},
		{"metadata.redis.username_file", &c.Metadata.Redis.UsernameFile},
		{"metadata.redis.password_file", &c.Metadata.Redis.PasswordFile},
		{"metadata.redis.sentinel.password_file", &c.Metadata.Redis.Sentinel.PasswordFile},
		{"metadata.redis.ca_file", &c.Metadata.Redis.CAFile},
		{"metadata.redis.cert_file", &c.Metadata.Redis.CertFile},
		{"metadata.redis.cert_key_file", &c.Metadata.Redis.CertKeyFile},
	}
	for _, l := range c.Listen.secured() {
		all = append(all, pathAt{"listen." + l.key + "_tls.cert_file", &l.files.CertFile}, pathAt{"listen." + l.key + "_tls.key_file", &l.files.KeyFile})
	}
	for _, list := range []struct {
		key   string
		paths []string
	}{
		{"auth.clients.keys", c.Auth.Clients.Keys}, {"auth.agents.keys", c.Auth.Agents.Keys}, {"auth.admins.keys", c.Auth.Admins.Keys},
		{"auth.records.trusted", c.Auth.Records.Trusted},
	} {
		for i := range list.paths {
			all = append(all, pathAt{element(list.key, i), &list.paths[i]})
		}
	}
	all = append(all, c.Auth.Clients.pathsOf("auth.clients")...)
	all = append(all, c.Auth.Agents.pathsOf("auth.agents")...)
	all = append(all, c.Auth.Admins.pathsOf("auth.admins")...)
	for i := range c.Models {
		m, model := &c.Models[i], element("models", i)
		for _, from := range sourcesOf(m) {
			at := model + "." + from.key + "_from"
			all = append(all, pathAt{at + ".file", &from.source.File}, pathAt{at + ".key_dir", &from.source.KeyDir})
			for _, f := range from.source.EngineFiles() {
				all = append(all, pathAt{at + "." + f.Key, f.Path})
			}
			for j := range *from.engines {
				for _, f := range (*from.engines)[j].Files() {
					all = append(all, pathAt{element(model+"."+from.key, j) + "." + f.Key, f.Path})
				}
			}
		}
	}
	return all
}
