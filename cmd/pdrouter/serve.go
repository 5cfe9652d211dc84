package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"pdrouter/internal/configfile"
	"pdrouter/internal/field"
	"pdrouter/internal/gateway"
	"pdrouter/internal/gcpace"
	"pdrouter/internal/inspect"
	"pdrouter/internal/telemetry"
	"pdrouter/policies"
	"pdrouter/router/config"
)

func serveCommand() *cobra.Command {
	c := &cobra.Command{Use: "serve [FILE]", Short: "Run the gateway.", Args: cobra.MaximumNArgs(1)}
	c.Long = serveAbout
	path := configFlag(c)
	learned := learnFlags(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := learned.check(c, args); err != nil {
			return err
		}
		if err := configArgument(c, path, args); err != nil {
			return err
		}
		load := func() (*configfile.Loaded, error) { return configfile.Load(*path) }
		if learned.on() {
			text, err := learned.learn(c.Context(), c.ErrOrStderr())
			if err != nil {
				return err
			}
			load = func() (*configfile.Loaded, error) { return configfile.Parse("", text) }
			if learned.print {
				_, err := load()
				_, _ = c.OutOrStdout().Write(text)
				return err
			}
		}
		l, err := load()
		if errors.Is(err, os.ErrNotExist) && *path == defaultConfig && !c.Flags().Changed("config") {
			return fmt.Errorf("no configuration: give -c FILE, or engines by --prefill and --decode or by --engine (%w)", err)
		}
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

// learnedHead begins what --print-config prints.
const learnedHead = `# Learned from the engines. configs/ and docs/configuration.md have what else can be set.
`

const serveAbout = `Run the gateway, with a configuration file or with engines from the command line.

  pdrouter serve --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200
  pdrouter serve --engine http://127.0.0.1:8000 --engine http://127.0.0.1:8001
  pdrouter serve -c pdrouter.yaml

With engines from the command line the gateway asks each of them which model it serves, how it hands KV off and where its side
channel is, and waits for those that still start. --print-config prints the same as a configuration file, to keep and to extend.
With --policy cost each request takes the path that is thought best, decode alone or a pair; with --policy roles every prompt is split.`

// learned are the flags of serve that stand for a configuration file.
type learned struct {
	inspect.Fleet
	listen     string
	operations string
	policy     string
	print      bool
}

func learnFlags(c *cobra.Command) *learned {
	l := new(learned)
	f := c.Flags()
	f.StringArrayVar(&l.Prefill, "prefill", nil, "base `URL` of a prefill engine; may be given several times")
	f.StringArrayVar(&l.Decode, "decode", nil, "base `URL` of a decode engine; may be given several times")
	f.StringArrayVar(&l.Engines, "engine", nil, "base `URL` of an engine that serves requests alone; may be given several times")
	f.StringVar(&l.Name, "model", "", "`name` of the model; default: the first that every engine serves")
	f.StringVar(&l.BearerTokenFile, "bearer-token-file", "", "`file` with the bearer token for the engines")
	f.StringVar(&l.listen, "listen", "127.0.0.1:8080", "`address` for clients")
	f.StringVar(&l.operations, "operations", "127.0.0.1:9090", "`address` for health, metrics and /requests")
	f.StringVar(&l.policy, "policy", "cost", "how engines are chosen: cost or roles")
	f.DurationVar(&l.Wait, "wait", 10*time.Minute, "how long to wait for engines that do not answer yet")
	f.BoolVar(&l.print, "print-config", false, "print the configuration that was learned, and serve nothing")
	return l
}

// check refuses flags that do not go together.
func (l *learned) check(c *cobra.Command, args []string) error {
	var wrong string
	switch prefill, decode, engine := len(l.Prefill) > 0, len(l.Decode) > 0, len(l.Engines) > 0; {
	case prefill != decode:
		wrong = "--prefill and --decode are only of use together"
	case engine && prefill:
		wrong = "--engine is set beside --prefill and --decode; want engines that serve requests alone, or pairs"
	case l.on() && (c.Flags().Changed("config") || len(args) > 0):
		wrong = "a configuration file is named beside engines; want one of them"
	case l.choosing().Validate() != nil:
		wrong = fmt.Sprintf("--policy is %q; want cost or roles", l.policy)
	case l.Wait <= 0:
		wrong = fmt.Sprintf("--wait is %v; want more than 0", l.Wait)
	default:
		for _, name := range []string{"model", "bearer-token-file", "listen", "operations", "policy", "wait", "print-config"} {
			if !l.on() && c.Flags().Changed(name) {
				return usageError{fmt.Errorf("--%s is only of use with --prefill and --decode, or with --engine", name), c.CommandPath()}
			}
		}
		for _, url := range slices.Concat(l.Prefill, l.Decode, l.Engines) {
			if err := config.CheckURL(url); err != nil {
				return usageError{err, c.CommandPath()}
			}
		}
		return nil
	}
	return usageError{errors.New(wrong), c.CommandPath()}
}

// choosing is the policy that the command line names.
func (l *learned) choosing() policies.Config {
	return policies.Config{Default: policies.Choosing{Policy: l.policy}}
}

// on reports whether the command line names engines.
func (l *learned) on() bool { return len(l.Prefill)+len(l.Engines) > 0 }

// learn asks the engines and returns the configuration as YAML. It tells out which engine it waits for.
func (l *learned) learn(ctx context.Context, out io.Writer) ([]byte, error) {
	m, err := l.Model(ctx, out)
	if err != nil {
		all := field.Split(err)
		for i, one := range all {
			all[i] = fmt.Errorf("serve: %w", one)
		}
		return nil, errors.Join(all...)
	}
	text, err := configfile.Marshal(configfile.File{
		Listen: configfile.Listen{Clients: l.listen, Operations: l.operations},
		Config: config.Config{Models: []config.Model{m}},
		Policy: configfile.Policy{Config: l.choosing()},
	})
	return append([]byte(learnedHead), text...), err
}
