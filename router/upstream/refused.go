package upstream

import (
	"crypto/tls"
	"errors"
	"syscall"
)

// RefusesConnections reports whether a server will take no connection as long as it stays as it is: nothing listens, or its certificate is not
// what the configuration wants.
func RefusesConnections(err error) bool {
	var unverified *tls.CertificateVerificationError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &unverified)
}
