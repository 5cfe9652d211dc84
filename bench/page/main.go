// Command page writes docs/measurements: one page and its charts, from the reports that "pdrouter bench -o" has put into the
// folder data beside them. It is a command of its own so that the gateway does not link the library that draws.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

// run writes the page of the folder that it is given.
func run(args []string) error {
	if len(args) != 1 {
		return errors.New("want one argument, the folder docs/measurements")
	}
	dir := args[0]
	files, err := files(filepath.Join(dir, "data"))
	if err != nil {
		return err
	}
	for name, content := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
	return err
}
