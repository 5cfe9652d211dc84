package router

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"

	"pdrouter/router/config"
	"pdrouter/router/openai"
)

// newSealer reads the key from the file, or draws one if there is none named; it goes on with the one that old has drawn.
func newSealer(cfg config.Config, old *openai.Sealer) (*openai.Sealer, error) {
	switch {
	case !cfg.IsolatePrefixCache:
		return nil, nil
	case cfg.PrefixCacheSecretFile != "":
		key, err := os.ReadFile(cfg.PrefixCacheSecretFile)
		if err != nil {
			return nil, fmt.Errorf("prefix_cache_secret_file: %w", err)
		}
		if key = bytes.TrimSpace(key); len(key) < openai.MinSealKey {
			return nil, fmt.Errorf("prefix_cache_secret_file %s has %d bytes; want %d or more", cfg.PrefixCacheSecretFile, len(key), openai.MinSealKey)
		}
		return &openai.Sealer{Key: key}, nil
	case old != nil:
		return old, nil
	}
	key := make([]byte, openai.MinSealKey)
	_, _ = rand.Read(key) // it never fails
	return &openai.Sealer{Key: key}, nil
}
