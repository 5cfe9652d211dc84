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
	name := f.String("name", "", "whose key it is; keys of one name are counted together")
	models := f.String("models", "", "models that the key may name, with commas between; none means all")
	scope := f.String("scope", "", "priority: requests with the key may say how urgent they are; default: they may not")
	var limits auth.Limits
	f.IntVar(&limits.Requests, "requests-per-minute", 0, "requests that its holder may make in a minute; 0 leaves it to the configuration")
	f.IntVar(&limits.Tokens, "tokens-per-minute", 0, "tokens, prompts and answers together, that its holder may use in a minute; 0 leaves it to the configuration")
	f.IntVar(&limits.Concurrent, "concurrent", 0, "requests that its holder may have under way at once; 0 leaves it to the configuration")
	if err := parseFlags(f, args, out); err != nil {
		return err
	}
	if err := emptyLists(f, "models"); err != nil {
		return err
	}
	if *file == "" || *name == "" {
		return errors.New("keys api: want --file and --name")
	}
	key, err := auth.AppendAPIKey(*file, *name, splitList(*models), limits, splitList(*scope)...)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, key)
	return nil
}
