package configfile

import "path/filepath"

// Resolve makes the relative paths of c relative to dir. It changes c and what its lists share.
func (c *File) Resolve(dir string) {
	for _, p := range c.Paths() {
		if *p.At != "" && !filepath.IsAbs(*p.At) {
			*p.At = filepath.Join(dir, *p.At)
		}
	}
}

// pathAt is a path in a configuration and its dotted key.
type pathAt struct {
	Key string
	At  *string
}

// Paths returns every path of c that is set or could be.
func (c *File) Paths() []pathAt {
	all := []pathAt{
		{"policy.file", &c.Policy.File},
		{"prefix_cache_secret_file", &c.PrefixCacheSecretFile},
		{"auth.clients.api_keys_file", &c.Auth.Clients.APIKeysFile},
		{"auth.records.key_file", &c.Auth.Records.KeyFile},
		{"auth.control_token_file", &c.Auth.ControlTokenFile},
		{"tracing.headers_file", &c.Tracing.HeadersFile},
		{"metadata.redis.username_file", &c.Metadata.Redis.UsernameFile},
		{"metadata.redis.password_file", &c.Metadata.Redis.PasswordFile},
		{"metadata.redis.sentinel.password_file", &c.Metadata.Redis.Sentinel.PasswordFile},
		{"metadata.redis.ca_file", &c.Metadata.Redis.CAFile},
		{"metadata.redis.cert_file", &c.Metadata.Redis.CertFile},
		{"metadata.redis.cert_key_file", &c.Metadata.Redis.CertKeyFile},
	}
	for _, l := range c.Listen.Secured() {
		all = append(all, pathAt{"listen." + l.Key + "_tls.cert_file", &l.files.CertFile}, pathAt{"listen." + l.Key + "_tls.key_file", &l.files.KeyFile})
	}
	for _, list := range []struct {
		key   string
		paths []string
	}{
		{"auth.clients.keys", c.Auth.Clients.Keys}, {"auth.agents.keys", c.Auth.Agents.Keys}, {"auth.admins.keys", c.Auth.Admins.Keys},
		{"auth.records.trusted", c.Auth.Records.Trusted},
	} {
		for i := range list.paths {
			all = append(all, pathAt{Element(list.key, i), &list.paths[i]})
		}
	}
	all = append(all, c.Auth.Clients.pathsOf("auth.clients")...)
	all = append(all, c.Auth.Agents.pathsOf("auth.agents")...)
	all = append(all, c.Auth.Admins.pathsOf("auth.admins")...)
	for i := range c.Models {
		m, model := &c.Models[i], Element("models", i)
		for _, from := range EngineLists(m) {
			at := model + "." + from.Key + "_from"
			all = append(all, pathAt{at + ".file", &from.Source.File}, pathAt{at + ".key_dir", &from.Source.KeyDir}, pathAt{at + ".kubernetes.kubeconfig", &from.Source.Kubernetes.Kubeconfig})
			for _, f := range from.Source.EngineFiles() {
				all = append(all, pathAt{at + "." + f.Key, f.Path})
			}
			for j := range *from.Engines {
				for _, f := range (*from.Engines)[j].Files() {
					all = append(all, pathAt{Element(model+"."+from.Key, j) + "." + f.Key, f.Path})
				}
			}
		}
	}
	return all
}
