package main

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"pdrouter/auth"
)

func newAPIKey(args []string, out io.Writer) error {
	f := flag.NewFlagSet("keys api", flag.ContinueOnError)
	file := f.String("file", "", "file of API keys, made if need be; only the key's digest goes into it")
	name := f.String("name", "", "whose key it is")
	models := f.String("models", "", "models that the key may name, with commas between; none means all")
	if err := parseFlags(f, args, out); err != nil {
		return err
	}
	if *file == "" || *name == "" {
		return errors.New("keys api: want --file and --name")
	}
	key, err := auth.AppendAPIKey(*file, *name, splitList(*models))
	if err != nil {
		return err
	}
	fmt.Fprintln(out, key)
	return nil
}
