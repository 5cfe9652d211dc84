package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"pdrouter/auth/keys"
)

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
func emptyLists(c *cobra.Command, names ...string) error {
	var errs []error
	for _, name := range names {
		if f := c.Flag(name); f.Changed && f.Value.String() == "" {
			errs = append(errs, fmt.Errorf("%s: --%s is empty; leave it out for all", c.CommandPath(), name))
		}
	}
	return errors.Join(errs...)
}

func newKeyCommand() *cobra.Command {
	c := &cobra.Command{Use: "new", Short: "Make one key pair.", Args: cobra.NoArgs}
	dir := c.Flags().String("out", "", "`folder` of the two files, made if need be")
	algorithm := c.Flags().String("algorithm", keys.EdDSA, "of the key's tokens: EdDSA, ES256 or RS256; records and tickets need EdDSA")
	required(c, "out")
	c.RunE = func(c *cobra.Command, _ []string) error {
		k, err := keys.Generate(*algorithm)
		if err != nil {
			return err
		}
		private, public, err := keys.Write(*dir, k)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "kid      %s\nprivate  %s\npublic   %s\n", k.ID, private, public)
		return nil
	}
	return c
}

// required marks flags that a command cannot do without.
func required(c *cobra.Command, names ...string) {
	for _, name := range names {
		if err := c.MarkFlagRequired(name); err != nil {
			panic(err) // the command has no such flag
		}
	}
}
