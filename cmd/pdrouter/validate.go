package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"pdrouter/internal/configfile"
	"pdrouter/internal/field"
	"pdrouter/internal/inspect"
	"pdrouter/internal/yamlfile"
)

func validateCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "validate [FILE]", Aliases: []string{"check"}, Args: cobra.MaximumNArgs(1),
		Short: "Check a configuration and show what it would serve.",
		Long:  "Check a configuration and show what it would serve. Every mistake is reported, each with its file and line.",
	}
	path, output := configFlag(c), outputFlag(c)
	skipFiles := c.Flags().Bool("skip-files", false, "do not open the files that the configuration names, such as keys: they are on another machine")
	probe := c.Flags().Bool("probe", false, "also ask each engine what it is, and name what does not fit the configuration; stock vLLM keeps one KV block for it until a lease ends")
	c.MarkFlagsMutuallyExclusive("skip-files", "probe")
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := configArgument(c, path, args); err != nil {
			return err
		}
		l, err := configfile.Validate(*path, *skipFiles)
		if err != nil && !output.json() {
			return err
		}
		var warnings []string
		if err == nil && *probe {
			warnings, err = askEngines(c.Context(), l)
		}
		if output.json() {
			if l != nil {
				warnings = append(l.Warnings(!*skipFiles), warnings...)
			}
			return errors.Join(printJSON(c.OutOrStdout(), validationOf(err, warnings)), err)
		}
		return errors.Join(printValidation(c.OutOrStdout(), l, !*skipFiles, *probe, warnings, err), err)
	}
	return c
}

// validation is what a check has found, for programs.
type validation struct {
	Errors   []validationError `json:"errors"`
	Warnings []string          `json:"warnings"`
}

// validationError is one mistake. What it is not about is left out.
type validationError struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Path    string `json:"path,omitempty"` // the dotted key
	Message string `json:"message"`        // follows the path in a sentence
}

// validationOf takes the errors that err joins.
func validationOf(err error, warnings []string) validation {
	v := validation{Errors: []validationError{}, Warnings: append([]string{}, warnings...)}
	for _, one := range field.Split(err) {
		if m, ok := errors.AsType[yamlfile.Mistake](one); ok {
			v.Errors = append(v.Errors, validationError{m.File, m.Line, m.Path, m.Msg})
		} else {
			v.Errors = append(v.Errors, validationError{Message: one.Error()})
		}
	}
	return v
}

// printValidation prints what the configuration would serve, warnings last. wrong is what the engines say against it.
func printValidation(out io.Writer, l *configfile.Loaded, files, probed bool, warnings []string, wrong error) error {
	verdict := "is sound"
	if wrong != nil {
		verdict = "does not fit what its engines say"
	}
	fmt.Fprintf(out, "%s %s\n\n", l.Path, verdict)
	if err := l.Summarize(out, files); err != nil {
		return err
	}
	for _, text := range warnings {
		fmt.Fprintf(out, "\nWARNING: %s\n", text)
	}
	if probed && wrong == nil {
		fmt.Fprintln(out, "\nevery engine answers and fits the configuration")
	}
	return nil
}

// askEngines compares the configuration with what the engines say. It returns what does not fit as an error, each with file and line.
func askEngines(ctx context.Context, l *configfile.Loaded) (warnings []string, err error) {
	var wrong []error
	for _, f := range inspect.Probe(ctx, l.Models) {
		if f.Warning {
			warnings = append(warnings, f.String())
		} else {
			wrong = append(wrong, field.Errorf(f.Path, "%s", f.Text))
		}
	}
	return warnings, l.At(errors.Join(wrong...))
}
