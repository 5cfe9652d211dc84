// Command pdrouter is the gateway for prefill/decode disaggregation, and the tools around it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"pdrouter/internal/demo"
	"pdrouter/internal/exercise"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if len(os.Args) > 1 && os.Args[1] == "serve" { // SIGHUP reloads the configuration; while the gateway starts or stops it is ignored
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	context.AfterFunc(ctx, stop) // the first signal ends the work in order, a second one ends the process
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pdrouter:", err)
		os.Exit(exitCode(err))
	}
}

// run executes one command line. It prints no error: that is for main.
func run(ctx context.Context, args []string, out io.Writer) error {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(os.Stderr)
	return execute(ctx, root)
}

func newRoot() *cobra.Command {
	root := group("pdrouter", "The gateway for prefill/decode disaggregation, and the tools around it.",
		serveCommand(), topCommand(), explainCommand(), simulateCommand(), validateCommand(), demo.Command(), exercise.Command(), mockEngineCommand(),
		group("admin", "Change a running gateway.", enginesCommand()),
		group("token", tokenAbout, mintCommand(), inspectCommand(), verifyCommand()),
		group("keys", "Make signing keys and API keys.", newKeyCommand(), rotateCommand(), apiKeyCommand(), kubernetesKeysCommand()),
		group("config", "Show what the configuration file may contain, and what it comes to.", schemaCommand(), dumpCommand()),
		benchCommand(), versionCommand())
	root.SetHelpCommand(helpCommand(root))
	root.Version = version() // printed as cobra does by itself: a template of ours would make the binary 15 MB larger
	return root
}

// group is a command that only has others below it. Called without one of them it prints its help.
func group(name, about string, below ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: name, Short: about}
	c.AddCommand(below...)
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		c.SuggestionsMinimumDistance = 2
		err := fmt.Errorf("unknown command %q", args[0])
		if near := c.SuggestionsFor(args[0]); len(near) > 0 {
			err = fmt.Errorf("%w; did you mean %q?", err, near[0])
		}
		return usageError{err, c.CommandPath()}
	}
	c.Args = cobra.ArbitraryArgs
	return c
}

// helpCommand is cobra's, but for a topic that there is not: that is an error.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Help about a command.",
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return fmt.Errorf("no help on %q", strings.Join(args, " ")) // execute makes it a usage error
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	}
}

// usageError is a command line that cannot be understood.
type usageError struct {
	err     error
	command string
}

func (e usageError) Error() string {
	return fmt.Sprintf("%v\n%q lists what it takes", e.err, e.command+" --help")
}

func (e usageError) Unwrap() error { return e.err }

// exitCode is 2 for a command line that cannot be understood, and 1 for every other error.
func exitCode(err error) int {
	if errors.As(err, new(usageError)) {
		return 2
	}
	return 1
}

// execute runs the tree of commands. Every error that comes before a command begins is a usage error.
func execute(ctx context.Context, root *cobra.Command) error {
	root.SilenceErrors, root.SilenceUsage = true, true
	began := false
	var mark func(*cobra.Command)
	mark = func(c *cobra.Command) {
		if work := c.RunE; work != nil {
			c.RunE = func(c *cobra.Command, args []string) error {
				began = true
				return work(c, args)
			}
		}
		for _, below := range c.Commands() {
			mark(below)
		}
	}
	mark(root)
	c, err := root.ExecuteContextC(ctx)
	if err != nil && !began {
		return usageError{err, c.CommandPath()}
	}
	return err
}
