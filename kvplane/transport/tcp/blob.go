package tcp

import (
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/metadata"
)

// contact is what a peer must know to write into this agent's memory. Whoever holds it may do so: it is a secret.
type contact struct {
	Version   int      `msgpack:"v"`
	Addresses []string `msgpack:"addresses"` // host:port, tried in order
	Secret    []byte   `msgpack:"secret"`    // new at every Open
	Memory    []byte   `msgpack:"memory"`    // packed spans

	// Process is where the agent lives, so that a peer on the same host can offer it its memory; zero if it takes none.
	Process metadata.Process `msgpack:"process"`
}

const blobVersion = 3

func (b contact) encode() ([]byte, error) { return msgpack.Marshal(b) }

// parseContact decodes and checks a peer's blob.
func parseContact(raw []byte) (contact, error) {
	var b contact
	if err := msgpack.Unmarshal(raw, &b); err != nil {
		return contact{}, fmt.Errorf("blob: %w", err)
	}
	switch {
	case b.Version != blobVersion:
		return contact{}, fmt.Errorf("blob: version is %d; want %d", b.Version, blobVersion)
	case len(b.Addresses) == 0:
		return contact{}, fmt.Errorf("blob: no address")
	case len(b.Secret) != secretBytes:
		return contact{}, fmt.Errorf("blob: secret of %d bytes; want %d", len(b.Secret), secretBytes)
	}
	return b, nil
}
