package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
)

// TLS says how the gateway and an engine with an https URL authenticate each other. It holds for every connection to the
// engine: requests, health checks, metrics and control routes. The files are read again when they change; connections that are
// open stay as they are.
type TLS struct {
	// CAFile has the CA certificates, PEM, that the engine's certificate is verified with. Default: those of the system.
	CAFile string `yaml:"ca_file"`
	// CertFile has the certificate, PEM, that the gateway shows to the engine. Default: none is shown.
	CertFile string `yaml:"cert_file"`
	// KeyFile has the private key of that certificate, PEM.
	KeyFile string `yaml:"key_file"`
	// ServerName is the name that the engine's certificate must have. Default: the host of the URL.
	ServerName string `yaml:"server_name"`
}

// files returns the paths.
func (t *TLS) files() []EngineFile {
	return []EngineFile{{"tls.ca_file", &t.CAFile}, {"tls.cert_file", &t.CertFile}, {"tls.key_file", &t.KeyFile}}
}

// validate checks the section of an entry. secure says whether the entry has an https URL.
func (t TLS) validate(key string, secure bool, v *faults) {
	switch {
	case t == TLS{}:
	case !secure:
		v.add(key, "is set", "an https URL")
	case (t.CertFile == "") != (t.KeyFile == ""):
		v.add(key, "has one of cert_file and key_file", "both or neither")
	}
}

// Check reads the files, and reports what is wrong with them.
func (t TLS) Check() error {
	_, err := t.Load(new(Secrets))
	return err
}

// Load reads the files. It returns nil if nothing is configured.
func (t TLS) Load(files *Secrets) (*tls.Config, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		text, err := files.Read("tls.ca_file", t.CAFile)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(text)) {
			return nil, &KeyError{"tls.ca_file", t.CAFile, errors.New("it has no certificate")}
		}
	}
	if t.CertFile != "" {
		cert, err := files.Read("tls.cert_file", t.CertFile)
		if err != nil {
			return nil, err
		}
		key, err := files.Read("tls.key_file", t.KeyFile)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
		if err != nil {
			return nil, &KeyError{"tls.cert_file", t.CertFile, err}
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// EngineFile is a path in an engine's entry, and its key.
type EngineFile struct {
	Key  string
	Path *string // "" if it is not set
}

// Files returns every path of the entry.
func (e *Engine) Files() []EngineFile {
	return append(e.TLS.files(), EngineFile{"bearer_token_file", &e.BearerTokenFile})
}

// EngineFiles returns every path that the source gives its engines.
func (s *Source) EngineFiles() []EngineFile {
	return append(s.TLS.files(), EngineFile{"bearer_token_file", &s.BearerTokenFile})
}
