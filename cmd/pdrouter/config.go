package main

import (
	"io"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"pdrouter/internal/configfile"
)

func schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use: "schema [config|policy|engines]", Short: "Print the JSON Schema of a configuration file, for editors.",
		Long:      "Print the JSON Schema of the configuration file, of a policy file or of a file of engines, for editors.",
		ValidArgs: []string{"config", "policy", "engines"}, Args: cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		RunE: func(c *cobra.Command, args []string) error {
			text := configfile.Schema
			switch {
			case len(args) == 0:
			case args[0] == "policy":
				text = configfile.PolicySchema
			case args[0] == "engines":
				text = configfile.EnginesSchema
			}
			_, err := io.WriteString(c.OutOrStdout(), text)
			return err
		},
	}
}

func dumpCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "dump [FILE]", Short: "Print the effective configuration: the file's values and the defaults of all others.", Args: cobra.MaximumNArgs(1),
		Long: "Print the effective configuration: the file's values and the defaults of all others. Paths are absolute. Files that it names are\nnot opened, but for a policy, and no secret is printed.",
	}
	path, output := configFlag(c), outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := configArgument(c, path, args); err != nil {
			return err
		}
		file, err := filepath.Abs(*path) // what is dumped can be used elsewhere
		if err != nil {
			return err
		}
		l, err := configfile.Load(file)
		if err != nil {
			return err
		}
		text, err := l.Dump()
		if err != nil {
			return err
		}
		if output.json() {
			var value any
			if err := yaml.Unmarshal(text, &value); err != nil {
				return err
			}
			return printJSON(c.OutOrStdout(), value)
		}
		_, err = c.OutOrStdout().Write(text)
		return err
	}
	return c
}
