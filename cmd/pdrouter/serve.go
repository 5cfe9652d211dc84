package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"pdrouter/internal/configfile"
	"pdrouter/internal/gateway"
	"pdrouter/internal/gcpace"
	"pdrouter/internal/telemetry"
)

func serveCommand() *cobra.Command {
	c := &cobra.Command{Use: "serve", Short: "Run the gateway.", Args: cobra.NoArgs}
	c.Long = serveAbout
	path := configFlag(c)
	learned := learnFlags(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		load := func() (*configfile.Loaded, error) { return configfile.Load(*path) }
		if learned.on() {
			text, err := learned.learn(c.Context(), c.ErrOrStderr())
			if err != nil || learned.print {
				_, _ = c.OutOrStdout().Write(text)
				return err
			}
			load = func() (*configfile.Loaded, error) { return configfile.Parse("", text) }
		}
		l, err := load()
		if err != nil {
			return err
		}
		return serve(c.Context(), l, c.OutOrStdout())
	}
	return c
}

// defaultConfig is where the image and the Kubernetes manifests have the configuration.
const defaultConfig = "/etc/pdrouter/config/pdrouter.yaml"

// configFlag gives a command the flag that names the configuration file.
func configFlag(c *cobra.Command) *string {
	return c.Flags().StringP("config", "c", cmp.Or(os.Getenv("PDROUTER_CONFIG"), defaultConfig),
		"the configuration `file`; the environment variable PDROUTER_CONFIG sets the default")
}

// configArgument takes the file from an argument, which may stand in place of the flag.
func configArgument(c *cobra.Command, path *string, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if c.Flags().Changed("config") {
		return usageError{errors.New("the configuration file is named twice"), c.CommandPath()}
	}
	*path = args[0]
	return nil
}

// serve runs the gateway until ctx ends, then lets the requests in progress finish.
func serve(ctx context.Context, l *configfile.Loaded, out io.Writer) error {
	logs := new(telemetry.Logs)
	defer logs.Flush()
	b := thisBuild()
	g, err := gateway.New(l, logs.Logger(os.Stderr), gateway.Options{Version: b.Version, Commit: b.Commit, Logs: logs})
	if err != nil {
		return err
	}
	gcpace.Start()
	fmt.Fprintln(out, "pdrouter:", g.Listening())
	return g.Run(ctx)
}
