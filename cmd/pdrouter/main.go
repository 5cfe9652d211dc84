// Command pdrouter is the gateway for prefill/decode disaggregation, and the tools around it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// command is one subcommand. Its run returns nil on success and flag.ErrHelp after printing its own help.
type command struct {
	name, about string
	run         func(ctx context.Context, args []string, out io.Writer) error
}

func commands() []command {
	return []command{
		{"serve", "run the gateway: pdrouter serve -c FILE", runServe},
		{"check", "validate a configuration and show what it would serve: pdrouter check -c FILE", runCheck},
		{"demo", "a gateway and four reference engines on this machine; every answer is compared", runDemo},
		{"engine", "run one reference engine", runEngine},
		{"engines", "list, add, drain and remove engines of a running gateway", runEngines},
		{"token", "mint, inspect or verify a token", runToken},
		{"keys", "make signing keys and API keys", runKeys},
		{"bench", "measure the gateway beside a floor in the same run", runBench},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if len(os.Args) > 1 && os.Args[1] == "serve" { // a hang-up has the file read again; while nothing can, at its start and end, it ends nothing
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	context.AfterFunc(ctx, stop) // the first signal ends the work in order, a second one ends the process
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "pdrouter:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		usage(out)
		return nil
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], out)
		}
	}
	if args[0] == "version" || args[0] == "--version" {
		fmt.Fprintln(out, version())
		return nil
	}
	return fmt.Errorf("unknown command %q; see pdrouter help", args[0])
}

func usage(out io.Writer) {
	fmt.Fprint(out, "pdrouter: the gateway for prefill/decode disaggregation\n\nusage: pdrouter COMMAND [flags]     (pdrouter COMMAND -h shows its flags)\n\n")
	for _, c := range commands() {
		fmt.Fprintf(out, "  %-8s %s\n", c.name, c.about)
	}
	fmt.Fprintf(out, "  %-8s %s\n", "version", "print the version")
}
