package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"pdrouter/auth"
)

func apiKeyCommand() *cobra.Command {
	c := &cobra.Command{Use: "api", Short: "Make an API key for a client, and append its digest to a file.", Args: cobra.NoArgs}
	f := c.Flags()
	file := f.String("file", "", "file of API keys, made if need be; only the key's digest goes into it")
	name := f.String("name", "", "whose key it is; keys of one name are counted together")
	models := f.String("models", "", "models that the key may name, with commas between; none means all")
	scope := f.String("scope", "", "priority: requests with the key may say how urgent they are; default: they may not")
	var limits auth.Limits
	f.IntVar(&limits.Requests, "requests-per-minute", 0, "requests that its holder may make in a minute; 0 leaves it to the configuration")
	f.IntVar(&limits.Tokens, "tokens-per-minute", 0, "tokens, prompts and answers together, that its holder may use in a minute; 0 leaves it to the configuration")
	f.IntVar(&limits.Concurrent, "concurrent", 0, "requests that its holder may have under way at once; 0 leaves it to the configuration")
	required(c, "file", "name")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := emptyLists(c, "models"); err != nil {
			return err
		}
		key, err := auth.AppendAPIKey(*file, *name, splitList(*models), limits, splitList(*scope)...)
		if err != nil {
			return err
		}
		fmt.Fprintln(c.OutOrStdout(), key)
		return nil
	}
	return c
}
