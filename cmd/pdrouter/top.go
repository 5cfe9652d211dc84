package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"pdrouter/internal/adminapi"
	"pdrouter/internal/gateway"
	"pdrouter/router/exchange"
	"pdrouter/router/report"
)

func topCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "top", Short: "Show a running gateway's engines, pairs, queues and requests.", Args: cobra.NoArgs,
		Long: `Show a running gateway's engines, pairs, queues and requests, and refresh it until q is pressed. Where the output is no terminal, it is printed
once.`,
	}
	f := c.Flags()
	at := f.String("gateway", "http://127.0.0.1:9090", "the base `URL` of listen.operations or of listen.admin")
	tokenFile := f.String("token-file", "", "a `file` with a token for pdrouter-admin, scope read, where auth.admins is configured")
	ca := f.String("ca-file", "", "a PEM `file` with whom the gateway's certificate is signed by; default: whom this machine trusts")
	every := f.Duration("interval", 2*time.Second, "how often it is refreshed; 100 ms at least")
	once := f.Bool("once", false, "print it once")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *every < 100*time.Millisecond {
			return usageError{fmt.Errorf("--interval is %v; want 100ms at least", *every), c.CommandPath()}
		}
		client, err := adminapi.NewClient(*at, *tokenFile, *ca)
		if err != nil {
			return err
		}
		out := c.OutOrStdout()
		if screen, ok := out.(*os.File); ok && !*once && term.IsTerminal(int(screen.Fd())) {
			return watchTop(c.Context(), client, screen, *every)
		}
		v, err := lookTop(c.Context(), client, topPatience)
		if err != nil {
			return err
		}
		for _, l := range v.lines() {
			if _, err := fmt.Fprintln(out, strings.TrimRight(l.text, " ")); err != nil {
				return err
			}
		}
		return nil
	}
	return c
}

// topView is what one look has found.
type topView struct {
	status gateway.Status
	recent []report.Summary
	live   []exchange.Live
}

// topRequests is how many finished requests are asked for.
const topRequests = 30

// topPatience is how long a gateway may take to answer. It answers within milliseconds, also under load.
const topPatience = 4 * time.Second

func lookTop(ctx context.Context, c *adminapi.Client, patience time.Duration) (v topView, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("there is no answer within %v", patience))
	defer cancel()
	defer func() {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%s: %w: is it the address of listen.operations, and does the gateway run?", c, context.Cause(ctx))
		}
	}()
	err = c.Get(ctx, "/status", &v.status)
	if err == nil {
		err = errors.Join(c.Get(ctx, fmt.Sprintf("/requests?limit=%d", topRequests), &v.recent), c.Get(ctx, "/requests/live", &v.live))
	}
	return v, err
}

// Escape sequences of terminals.
const (
	altScreen, mainScreen  = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
	home, clearLine, below = "\x1b[H", "\x1b[K", "\x1b[J"
	plainText              = "\x1b[0m"
)

var topColors = map[topLevel]string{topHead: "\x1b[1m", topWarn: "\x1b[33m", topBad: "\x1b[31m"}

// watchTop shows the view on a terminal until q or Ctrl-C is pressed, or ctx ends. A gateway that does not answer is waited for, once it has answered.
func watchTop(ctx context.Context, c *adminapi.Client, screen *os.File, every time.Duration) error {
	v, err := lookTop(ctx, c, topPatience)
	if err != nil {
		return err
	}
	keys := make(chan byte)
	if in := int(os.Stdin.Fd()); term.IsTerminal(in) {
		before, err := term.MakeRaw(in)
		if err != nil {
			return err
		}
		defer func() { _ = term.Restore(in, before) }() // there is nobody to tell
		go readKeys(os.Stdin, keys)
	}
	if _, err := io.WriteString(screen, altScreen); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(screen, mainScreen) }()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		lines := v.lines()
		if err != nil {
			lines = append([]topLine{{topBad, "the gateway does not answer, what follows is old: " + printable(err.Error())}}, lines...)
		}
		width, height, sizeErr := term.GetSize(int(screen.Fd()))
		if sizeErr != nil {
			return sizeErr
		}
		if _, err := io.WriteString(screen, drawn(lines, width, height)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case k := <-keys:
			if k == 'q' || k == 'Q' || k == 3 { // in raw mode Ctrl-C is a key
				return nil
			}
		case <-tick.C:
		}
		var next topView
		if next, err = lookTop(ctx, c, topPatience); err == nil {
			v = next
		} else if ctx.Err() != nil {
			return nil
		}
	}
}

// readKeys sends every key. It ends with the input, or with the process.
func readKeys(in io.Reader, keys chan<- byte) {
	r := bufio.NewReader(in)
	for {
		k, err := r.ReadByte()
		if err != nil {
			return
		}
		keys <- k
	}
}

// drawn is a screen of lines: those that fit, each cut at the width.
func drawn(lines []topLine, width, height int) string {
	var b strings.Builder
	b.WriteString(home)
	for i, l := range lines {
		if i == height-1 {
			break
		}
		text := []rune(strings.TrimRight(l.text, " "))
		b.WriteString(topColors[l.level] + string(text[:min(len(text), max(width, 1))]) + plainText + clearLine + "\r\n")
	}
	b.WriteString(below)
	return b.String()
}
