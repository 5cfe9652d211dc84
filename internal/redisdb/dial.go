package redisdb

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
)

// dialer opens one connection at a time, with TLS from the files as they are at that moment.
type dialer struct{ cfg Config }

// dial connects to an address of the configuration, or that a node of a cluster gave.
func (d dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network, address = "unix", path
	}
	return d.secure(ctx, network, address, d.cfg.ServerName)
}

func (d dialer) secure(ctx context.Context, network, address, serverName string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Dial)
	defer cancel()
	if !d.cfg.TLS {
		var plain net.Dialer
		return plain.DialContext(ctx, network, address)
	}
	config, err := d.config(serverName)
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	encrypted := tls.Dialer{Config: config} // it takes the address's host where no name is given
	return encrypted.DialContext(ctx, network, address)
}

// config reads the files.
func (d dialer) config(serverName string) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName}
	if d.cfg.CAFile != "" {
		b, err := os.ReadFile(d.cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("ca_file: %s has no certificate", d.cfg.CAFile)
		}
	}
	if d.cfg.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(d.cfg.CertFile, d.cfg.CertKeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file: %w", err)
		}
		t.Certificates = []tls.Certificate{cert}
	}
	return t, nil
}
