package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"pdrouter/auth"
)

const keysUsage = `usage: pdrouter keys new --out DIR
       pdrouter keys api --file FILE --name NAME [--models MODEL,MODEL]
`

// runKeys makes keys: Ed25519 keys that sign tokens and records, and API keys of clients.
func runKeys(_ context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(out, keysUsage)
		return flag.ErrHelp
	}
	switch args[0] {
	case "new":
		return newKey(args[1:], out)
	case "api":
		return newAPIKey(args[1:], out)
	case "-h", "--help", "help":
		fmt.Fprint(out, keysUsage)
		return flag.ErrHelp
	}
	return fmt.Errorf("keys: unknown command %q; want new or api", args[0])
}

// parseFlags parses all of args as flags: a word that is none is an error.
func parseFlags(f *flag.FlagSet, args []string, out io.Writer) error {
	f.SetOutput(out)
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%s: unexpected argument %q", f.Name(), f.Arg(0))
	}
	return nil
}

// splitList cuts a comma-separated flag; the empty string is the empty list.
func splitList(s string) []string {
	if s == "" {
		return nil
	}
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

func newKey(args []string, out io.Writer) error {
	f := flag.NewFlagSet("keys new", flag.ContinueOnError)
	dir := f.String("out", "", "folder for the two files, made if need be")
	if err := parseFlags(f, args, out); err != nil {
		return err
	}
	if *dir == "" {
		return errors.New("keys new: --out is missing")
	}
	k, err := auth.GenerateKey(auth.EdDSA)
	if err != nil {
		return err
	}
	private, public, err := auth.WriteKey(*dir, k)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "kid      %s\nprivate  %s\npublic   %s\n", k.ID, private, public)
	return nil
}
