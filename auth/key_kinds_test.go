package auth

import (
	"encoding/pem"
	"os"
	"testing"
)

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func generate(t testing.TB, algorithm string) *Key {
	t.Helper()
	k, err := GenerateKey(algorithm)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
