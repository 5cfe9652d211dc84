package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"pdrouter/auth"
)

const keysUsage = `usage: pdrouter keys new [--algorithm EdDSA|ES256|RS256] --out DIR
       pdrouter keys rotate --dir DIR [--retire-after 24h] [--publish-ahead 6m] [--algorithm EdDSA|ES256|RS256] [--jwks FILE]
       pdrouter keys rotate --dir DIR --leaked
       pdrouter keys api --file FILE --name NAME [--models MODEL,MODEL]
`

// runKeys makes keys: those that sign tokens and records, and API keys of clients.
func runKeys(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(out, keysUsage)
		return flag.ErrHelp
	}
	switch args[0] {
	case "new":
		return newKey(args[1:], out)
	case "rotate":
		return rotateKeys(ctx, args[1:], out)
	case "api":
		return newAPIKey(args[1:], out)
	case "-h", "--help", "help":
		fmt.Fprint(out, keysUsage)
		return flag.ErrHelp
	}
	return fmt.Errorf("keys: unknown command %q; want new, rotate or api", args[0])
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

// emptyLists refuses flags that are given and empty, as a variable that is not set makes them: without the flag the list
// means everything.
func emptyLists(f *flag.FlagSet, names ...string) error {
	var err error
	f.Visit(func(given *flag.Flag) {
		if slices.Contains(names, given.Name) && given.Value.String() == "" {
			err = errors.Join(err, fmt.Errorf("%s: --%s is empty; leave it out for all", f.Name(), given.Name))
		}
	})
	return err
}

func newKey(args []string, out io.Writer) error {
	f := flag.NewFlagSet("keys new", flag.ContinueOnError)
	dir := f.String("out", "", "folder for the two files, made if need be")
	algorithm := f.String("algorithm", auth.EdDSA, "of the key's tokens: EdDSA, ES256 or RS256; records and tickets need EdDSA")
	if err := parseFlags(f, args, out); err != nil {
		return err
	}
	if *dir == "" {
		return errors.New("keys new: --out is missing")
	}
	k, err := auth.GenerateKey(*algorithm)
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
