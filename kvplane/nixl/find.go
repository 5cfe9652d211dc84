package nixl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
)

// LibraryVariable names the environment variable that says where the library is.
const LibraryVariable = "PDROUTER_NIXL_LIB"

// ErrNotInstalled is the cause of Find's error on a machine without NIXL.
var ErrNotInstalled = errors.New("libnixl_capi.so was not found")

// Find returns the path of the library: what PDROUTER_NIXL_LIB names (the file, or a folder to look in), else a wheel
// unpacked in .deps/nixl in the working folder or one above it, else a wheel installed for a Python on PATH or in the
// active virtual environment.
func Find() (string, error) {
	if at := os.Getenv(LibraryVariable); at != "" {
		if path, ok := in(at); ok {
			return path, nil
		}
		return "", fmt.Errorf("nixl: %s=%s: %w", LibraryVariable, at, ErrNotInstalled)
	}
	var folders []string
	if dir, err := os.Getwd(); err == nil {
		for {
			folders = append(folders, filepath.Join(dir, ".deps", "nixl"))
			up := filepath.Dir(dir)
			if up == dir {
				break
			}
			dir = up
		}
	}
	for _, root := range pythonRoots() {
		for _, pattern := range []string{"lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages"} {
			found, _ := filepath.Glob(filepath.Join(root, pattern)) // its only error is a bad pattern
			folders = append(folders, found...)
		}
	}
	for _, dir := range folders {
		if path, ok := in(dir); ok {
			return path, nil
		}
	}
	return "", fmt.Errorf("nixl: %w; set %s, or unpack the nixl-cu12 wheel into .deps/nixl", ErrNotInstalled, LibraryVariable)
}

// pythonRoots returns the prefixes under which wheels may be installed, the most specific first.
func pythonRoots() []string {
	var roots []string
	if env := os.Getenv("VIRTUAL_ENV"); env != "" {
		roots = append(roots, env)
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, "python3")); err == nil {
			roots = append(roots, filepath.Dir(filepath.Clean(dir)))
		}
	}
	return append(roots, "/usr/local", "/usr")
}

// in returns the library named by at: the file itself, or one in the layout of a wheel or of an installation.
func in(at string) (string, bool) {
	info, err := os.Stat(at)
	if err != nil {
		return "", false
	}
	if !info.IsDir() {
		return at, true
	}
	for _, pattern := range []string{"libnixl_capi.so", ".nixl_cu*.mesonpy.libs/libnixl_capi.so", "lib/*/libnixl_capi.so"} {
		found, _ := filepath.Glob(filepath.Join(at, pattern)) // its only error is a bad pattern
		if len(found) > 0 {
			sort.Strings(found)
			return found[0], true
		}
	}
	return "", false
}
