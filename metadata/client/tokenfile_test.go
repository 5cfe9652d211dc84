package client

import (
	"testing"

	"pdrouter/internal/metadatatest"
)

func TestTokenFileIsReadAgain(t *testing.T) {
	path := metadatatest.WriteTemp(t, "one\n")
	token := TokenFile(path)
	check := func(want string) {
		t.Helper()
		if got, err := token(); err != nil || got != want {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	check("one")
	rewrite(t, path, "three")
	check("three")
	rewrite(t, path, "")
	check("three")
	if _, err := TokenFile(path)(); err == nil {
		t.Error("an empty file gave a token")
	}
	if _, err := TokenFile(path + "x")(); err == nil {
		t.Error("a missing file gave a token")
	}
}
