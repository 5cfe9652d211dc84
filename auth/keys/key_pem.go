package keys

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
)

// parsePEM reads the one key of a PEM file, of which rest has not been read yet. The reader's own errors are not passed
// on: nothing is known of what they quote.
func parsePEM(block *pem.Block, rest []byte) (*Key, error) {
	if block.Type == "EC PARAMETERS" { // which curve, said once more
		if block, rest = pem.Decode(rest); block == nil {
			return nil, fmt.Errorf("PEM block ec parameters without a key")
		}
	}
	if more, _ := pem.Decode(rest); more != nil {
		return nil, fmt.Errorf("a second PEM block, %.40q; want one key", strings.ToLower(more.Type))
	}
	read := map[string]func([]byte) (any, error){
		"PRIVATE KEY":     x509.ParsePKCS8PrivateKey,
		"PUBLIC KEY":      x509.ParsePKIXPublicKey,
		"EC PRIVATE KEY":  func(der []byte) (any, error) { return x509.ParseECPrivateKey(der) },
		"RSA PRIVATE KEY": func(der []byte) (any, error) { return x509.ParsePKCS1PrivateKey(der) },
		"RSA PUBLIC KEY":  func(der []byte) (any, error) { return x509.ParsePKCS1PublicKey(der) },
	}[block.Type]
	if read != nil {
		part, err := read(block.Bytes)
		if err == nil {
			return keyOf("", part)
		}
	}
	return nil, fmt.Errorf("PEM block %.40q is not a key that can be read", strings.ToLower(block.Type))
}
