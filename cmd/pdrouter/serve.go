package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pdrouter/internal/configfile"
	"pdrouter/internal/gateway"
	"pdrouter/internal/gcpace"
	"pdrouter/internal/inspect"
	"pdrouter/internal/telemetry"
	"pdrouter/router/config"
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

const serveAbout = `Run the gateway, with a configuration file or with engines from the command line.

  pdrouter serve --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200
  pdrouter serve --engine http://127.0.0.1:8000 --engine http://127.0.0.1:8001
  pdrouter serve -c pdrouter.yaml

With engines from the command line the gateway asks each of them which model it serves, how it hands KV off and where its side
channel is, and waits for those that still start. --print-config prints the same as a configuration file, to keep and to extend.`

// learned are the flags of serve that stand for a configuration file.
type learned struct {
	prefill, decode, engines       []string
	model, bearerTokenFile, listen string
	wait                           time.Duration
	print                          bool
}

func learnFlags(c *cobra.Command) *learned {
	l := new(learned)
	f := c.Flags()
	f.StringArrayVar(&l.prefill, "prefill", nil, "base `URL` of a prefill engine; may be given several times")
	f.StringArrayVar(&l.decode, "decode", nil, "base `URL` of a decode engine; may be given several times")
	f.StringArrayVar(&l.engines, "engine", nil, "base `URL` of an engine that serves requests alone; may be given several times")
	f.StringVar(&l.model, "model", "", "`name` of the model; default: the first that every engine serves")
	f.StringVar(&l.bearerTokenFile, "bearer-token-file", "", "`file` with the bearer token for the engines")
	f.StringVar(&l.listen, "listen", "127.0.0.1:8080", "`address` for clients")
	f.DurationVar(&l.wait, "wait", 10*time.Minute, "how long to wait for engines that do not answer yet")
	f.BoolVar(&l.print, "print-config", false, "print the configuration that was learned, and serve nothing")
	for _, name := range []string{"prefill", "decode", "engine"} {
		c.MarkFlagsMutuallyExclusive("config", name)
	}
	c.MarkFlagsRequiredTogether("prefill", "decode")
	c.MarkFlagsMutuallyExclusive("engine", "prefill")
	return l
}

// on reports whether the command line names engines.
func (l *learned) on() bool { return len(l.prefill)+len(l.engines) > 0 }

// learn asks the engines and returns the configuration as YAML. It tells out which engine it waits for.
func (l *learned) learn(ctx context.Context, out io.Writer) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.wait, fmt.Errorf("serve: not every engine has answered within %v", l.wait))
	defer cancel()
	var all []inspect.Engine
	for _, list := range []struct {
		role inspect.Role
		name string
		urls []string
	}{{inspect.Prefill, "prefill", l.prefill}, {inspect.Decode, "decode", l.decode}, {inspect.Both, "engine", l.engines}} {
		for i, url := range list.urls {
			e := config.Engine{Name: fmt.Sprintf("%s-%d", list.name, i), URL: strings.TrimSuffix(url, "/"), BearerTokenFile: l.bearerTokenFile}
			all = append(all, inspect.Engine{Role: list.role, Entry: e})
		}
	}
	files := new(config.Secrets)
	for i := range all {
		if err := awaitEngine(ctx, files, &all[i], out); err != nil {
			return nil, err
		}
	}
	m, err := inspect.Learn(l.model, all)
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	var mistakes []error
	for i := range all {
		all[i].Path = all[i].Entry.URL
	}
	for _, f := range inspect.Compare(m, all) {
		if f.Warning {
			fmt.Fprintf(out, "pdrouter: warning: %v\n", f)
			continue
		}
		mistakes = append(mistakes, fmt.Errorf("serve: %v", f))
	}
	if len(mistakes) > 0 {
		return nil, errors.Join(mistakes...)
	}
	text, err := configfile.Marshal(configfile.File{Listen: configfile.Listen{Clients: l.listen}, Config: config.Config{Models: []config.Model{m}}})
	return append([]byte("# Learned from the engines; see configs/ and docs/configuration.md for what else can be set.\n"), text...), err
}

// awaitEngine asks an engine until it answers. One that is reached and answers with an error is not waited for, but for 503: it starts.
func awaitEngine(ctx context.Context, files *config.Secrets, e *inspect.Engine, out io.Writer) error {
	for told := false; ; told = true {
		e.Facts, e.Err = inspect.AskEngine(ctx, files, e.Entry)
		var status *inspect.StatusError
		starts := errors.Is(e.Err, syscall.ECONNREFUSED) || errors.Is(e.Err, context.DeadlineExceeded) || errors.As(e.Err, &status) && status.Status == http.StatusServiceUnavailable
		switch {
		case e.Err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%w; %s: %w", context.Cause(ctx), e.Entry.URL, e.Err)
		case !starts:
			return fmt.Errorf("serve: %s: %w", e.Entry.URL, e.Err)
		case !told:
			fmt.Fprintf(out, "pdrouter: waiting for %s: %v\n", e.Entry.URL, e.Err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}
