package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"pdrouter/internal/field"
	"pdrouter/internal/yamlfile"
	"pdrouter/router/config"
	"pdrouter/router/connector"
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
		l, err := validate(*path, *skipFiles)
		if output.json() {
			var warnings []string
			if err == nil {
				warnings = l.warnings(!*skipFiles)
			}
			if err == nil && *probe {
				var more []string
				more, err = l.askEngines(c.Context())
				warnings = append(warnings, more...)
			}
			return errors.Join(printJSON(c.OutOrStdout(), validationOf(err, warnings)), err)
		}
		if err != nil {
			return err
		}
		if err := l.summarize(c.OutOrStdout(), !*skipFiles); err != nil || !*probe {
			return err
		}
		return l.reportProbe(c.Context(), c.OutOrStdout())
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

// reportProbe prints what the engines' own words make of the configuration. It returns an error if something does not fit.
func (l *loaded) reportProbe(ctx context.Context, out io.Writer) error {
	fmt.Fprintln(out)
	warnings, err := l.askEngines(ctx)
	for _, text := range warnings {
		fmt.Fprintf(out, "WARNING: %s\n", text)
	}
	if err == nil {
		fmt.Fprintln(out, "every engine answers and fits the configuration")
	}
	return err
}

// askEngines compares the configuration with what the engines say. It returns what does not fit as an error, each with file and line.
func (l *loaded) askEngines(ctx context.Context) (warnings []string, err error) {
	var wrong []error
	for _, f := range l.probe(ctx) {
		if f.Warning {
			warnings = append(warnings, f.String())
		} else {
			wrong = append(wrong, field.Errorf(f.Path, "%s", f.Text))
		}
	}
	return warnings, l.at(errors.Join(wrong...))
}

// validate checks a configuration. It returns an error if there is any mistake.
func validate(path string, skipFiles bool) (*loaded, error) {
	l, err := loadConfig(path)
	if err != nil && looksLikePolicy(path) {
		return nil, fmt.Errorf("%s looks like a policy: name it in policy.file of a configuration, and validate that", path)
	}
	if err != nil {
		return nil, err
	}
	if !skipFiles {
		if err := l.checkFiles(nil); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// checkFiles opens every file that the configuration names as serve would, and reports all that cannot be used. Files of
// engines that old, which may be nil, had as well are left out: who looks at them says what is wrong with them, and their last
// good content holds, so that whoever writes one cannot keep the configuration from being read again.
func (l *loaded) checkFiles(old *loaded) error {
	followed := map[string]bool{}
	if old != nil {
		for _, from := range configured(old.Config) {
			followed[from.File] = true
		}
	}
	b, err := os.ReadFile(l.path)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	f := yamlfile.Decode(l.path, b, new(fileConfig))
	missing := map[string]bool{} // by section
	for _, p := range l.paths() {
		if *p.at == "" || strings.HasSuffix(p.key, "_from.file") && followed[*p.at] {
			continue
		}
		err := readable(*p.at)
		if err == nil && strings.HasPrefix(p.key, "models[") && strings.HasSuffix(p.key, "_file") {
			err = regular(*p.at)
		}
		if p.key == "auth.clients.api_keys_file" && errors.Is(err, errEmpty) {
			continue // serve starts with it and refuses everybody, which is warned of
		}
		if err != nil {
			f.Check(field.Errorf(p.key, "cannot be used: %v", err))
			missing[section(p.key)] = true
		}
	}
	for _, s := range l.Listen.secured() {
		if key := "listen." + s.key + "_tls"; !missing[key] {
			if _, err := s.load(); err != nil {
				f.Check(field.Errorf(key, "cannot be used: %v", err))
			}
		}
	}
	for _, part := range []struct {
		key  string
		load func() error
	}{
		{"auth.clients", func() error { _, err := l.Auth.clients(nil); return err }},
		{"auth.agents", func() error { _, err := l.Auth.agents(nil); return err }},
		{"auth.admins", func() error { _, err := l.Auth.admins(nil); return err }},
		{"auth.records", func() error { _, err := l.Auth.records(nil); return err }},
	} {
		if missing[part.key] {
			continue
		}
		if err := part.load(); err != nil {
			f.Check(field.Errorf(part.key, "cannot be used: %v", err))
		}
	}
	for i := range l.Models {
		for _, from := range sourcesOf(&l.Models[i]) {
			at := element("models", i) + "." + from.key
			tls := map[string]config.TLS{at + "_from": from.source.TLS}
			for j, e := range *from.engines {
				tls[element(at, j)] = e.TLS
			}
			for key, t := range tls {
				if bad, ok := errors.AsType[*config.KeyError](t.Check()); ok && !missing[key] {
					f.Check(field.Errorf(key+"."+bad.Key, "cannot be used: %v", bad.Err))
				}
			}
		}
	}
	return errors.Join(f.Err(), l.checkSources(followed))
}

// section returns the first two parts of a dotted key.
func section(key string) string {
	parts := strings.SplitN(key, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// errEmpty is what is wrong with a file that a failed command left behind.
var errEmpty = errors.New("the file is empty")

// regular reports why something cannot be used as a file. It does not open it: a pipe would wait for who writes.
func regular(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	return err
}

// readable reports why a file or folder cannot be used. An empty file is what a failed command leaves behind.
func readable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return err
	} else if info.Mode().IsRegular() && info.Size() == 0 {
		return errEmpty
	}
	return nil
}

// summarize prints listeners, models and warnings; those about what files hold only if these may be opened.
func (l *loaded) summarize(out io.Writer, files bool) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "%s is sound\n\n", l.path)
	fmt.Fprintf(w, "listener\taddress\twho may call\n")
	fmt.Fprintf(w, "clients\t%s%s\t%s\n", l.Listen.Clients, l.Listen.ClientsTLS.note(), l.whoClients())
	fmt.Fprintf(w, "agents\t%s\n", l.whoAgents())
	fmt.Fprintf(w, "operations\t%s\t%s\n", l.Listen.Operations, l.whoOperations())
	if l.Listen.Admin != "" {
		fmt.Fprintf(w, "admin\t%s\n", l.whoAdmins())
	}
	fmt.Fprintf(w, "\nmetadata\t%s\n\n", l.whereRecords())
	fmt.Fprintf(w, "model\tconnector\trule\trole\tengine\turl\n")
	for _, m := range l.Models {
		first := fmt.Sprintf("%s\t%s\t%s", m.Name, cmp.Or(m.Connector, connector.Default), l.policy.Rule(m.Name))
		for _, role := range []struct {
			name    string
			engines []config.Engine
			from    config.Source
		}{{"prefill", m.Prefill, m.PrefillFrom}, {"decode", m.Decode, m.DecodeFrom}, {"both", m.Engines, m.EnginesFrom}} {
			for _, e := range role.engines {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", first, role.name, e.Name, e.URL)
				first = "\t\t"
				for _, rank := range e.Names()[1:] {
					fmt.Fprintf(w, "%s\t%s\t%s\ta data-parallel rank of it\n", first, role.name, rank)
				}
			}
			if role.from.On() {
				fmt.Fprintf(w, "%s\t%s\t–\t%s\n", first, role.name, describeSource(role.from))
				first = "\t\t"
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, text := range l.warnings(files) {
		if _, err := fmt.Fprintf(out, "\nWARNING: %s\n", text); err != nil {
			return err
		}
	}
	return nil
}

func (l *loaded) whoClients() string {
	switch c := l.Auth.Clients; {
	case !c.on():
		return "EVERYBODY: no authentication"
	case c.APIKeysFile == "":
		return "tokens of " + c.issuerNames()
	case !c.tokenAuth.on():
		return "API keys"
	default:
		return "API keys, tokens of " + c.issuerNames()
	}
}

func (l *loaded) whoAgents() string {
	if l.Listen.Agents == "" {
		return "none"
	}
	return l.Listen.Agents + l.Listen.AgentsTLS.note() + "\ttokens of " + l.Auth.Agents.issuerNames()
}

func (l *loaded) whoOperations() string {
	if !l.Auth.Admins.on() {
		return "everybody who reaches it"
	}
	return "probes: everybody who reaches it; the rest: tokens of " + l.Auth.Admins.issuerNames()
}

func (l *loaded) whereRecords() string {
	where := "in this process"
	if l.Metadata.Store == "redis" {
		where = l.Metadata.Redis.Where()
	}
	if l.Auth.Records.KeyFile != "" {
		return where + ", signed"
	}
	return where + ", not signed"
}

// warnings are what is allowed and seldom meant.
func (l *loaded) warnings(files bool) []string {
	all := append(l.Auth.developmentWarnings(), l.Tenants.warnings()...)
	all = append(all, l.engineWarnings()...)
	if files {
		all = append(append(all, l.tenantWarnings()...), l.trustedWarnings()...)
		all = append(all, l.keylessWarnings()...)
	}
	if !l.Auth.Clients.on() && open(l.Listen.Clients) {
		all = append(all, fmt.Sprintf("whoever reaches %s can use the engines: auth.clients has neither api_keys_file nor keys", l.Listen.Clients))
	}
	if !l.Auth.Admins.on() && open(l.Listen.Operations) {
		all = append(all, fmt.Sprintf("anyone who can connect to %s can read /requests and /metrics and reload the configuration: auth.admins has no keys", l.Listen.Operations))
	}
	all = append(all, l.replicaWarnings()...)
	if l.Metadata.Store == "redis" && len(l.Auth.Records.Trusted) == 0 {
		all = append(all, "whoever can write to Redis can tell engines where to send KV: auth.records has no trusted keys")
	}
	if l.Metadata.Store == "redis" && l.Listen.Admin != "" && l.Auth.Records.KeyFile == "" {
		all = append(all, "whoever can write to Redis can drain and remove engines, and engines that administrators add are known to one gateway alone, until it ends: listen.admin and Redis are used, and auth.records has no key_file")
	}
	if l.Metadata.Store == "redis" && !l.Metadata.Redis.TLS && l.Metadata.Redis.PasswordFile == "" {
		all = append(all, "Redis is used without a password and without TLS: metadata.redis has neither password_file nor tls")
	}
	used := map[string]bool{}
	for _, m := range l.Models {
		used[l.policy.Rule(m.Name)] = true
	}
	for _, rule := range l.policy.Rules() {
		if !used[rule] {
			all = append(all, fmt.Sprintf("rule %q of the policy decides for no model of this configuration", rule))
		}
	}
	return all
}
