package configfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"pdrouter/internal/field"
	"pdrouter/internal/yamlfile"
	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// Validate checks a configuration. It returns an error if there is any mistake.
func Validate(path string, skipFiles bool) (*Loaded, error) {
	l, err := Load(path)
	if err != nil && looksLikePolicy(path) {
		return nil, fmt.Errorf("%s looks like a policy: name it in policy.file of a configuration, and validate that", path)
	}
	if err != nil {
		return nil, err
	}
	if !skipFiles {
		if err := l.CheckFiles(nil); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// CheckFiles opens every file that the configuration names as serve would, and reports all that cannot be used. Files of
// engines that old, which may be nil, had as well are left out. Their source reports what is wrong with them and keeps their last
// good content, so a mistake in such a file does not keep the configuration from being read again.
func (l *Loaded) CheckFiles(old *Loaded) error {
	followed := map[string]bool{}
	if old != nil {
		for i := range old.Models {
			for _, from := range EngineLists(&old.Models[i]) {
				followed[from.Source.File] = true
			}
		}
	}
	b, err := os.ReadFile(l.Path)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	f := yamlfile.Decode(l.Path, b, new(File))
	missing := map[string]bool{} // by section
	for _, p := range l.Paths() {
		if *p.At == "" || strings.HasSuffix(p.Key, "_from.file") && followed[*p.At] {
			continue
		}
		err := readable(*p.At)
		if err == nil && strings.HasPrefix(p.Key, "models[") && strings.HasSuffix(p.Key, "_file") {
			err = Regular(*p.At)
		}
		if p.Key == "auth.clients.api_keys_file" && errors.Is(err, errEmpty) {
			continue // serve starts with it and refuses everybody, which is warned of
		}
		if err != nil {
			f.Check(field.Errorf(p.Key, "cannot be used: %v", err))
			missing[section(p.Key)] = true
		}
	}
	for _, s := range l.Listen.Secured() {
		if key := "listen." + s.Key + "_tls"; !missing[key] {
			if _, err := s.Load(); err != nil {
				f.Check(field.Errorf(key, "cannot be used: %v", err))
			}
		}
	}
	for _, part := range []struct {
		key  string
		load func() error
	}{
		{"auth.clients", func() error { _, err := l.Auth.NewClients(nil); return err }},
		{"auth.agents", func() error { _, err := l.Auth.NewAgents(nil); return err }},
		{"auth.admins", func() error { _, err := l.Auth.NewAdmins(nil); return err }},
		{"auth.records", func() error { _, err := l.Auth.NewRecords(nil); return err }},
	} {
		if missing[part.key] {
			continue
		}
		if err := part.load(); err != nil {
			f.Check(field.Errorf(part.key, "cannot be used: %v", err))
		}
	}
	for i := range l.Models {
		for _, from := range EngineLists(&l.Models[i]) {
			at := Element("models", i) + "." + from.Key
			tls := map[string]config.TLS{at + "_from": from.Source.TLS}
			for j, e := range *from.Engines {
				tls[Element(at, j)] = e.TLS
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

// Regular reports why something cannot be used as a file. It does not open it: a pipe would wait for who writes.
func Regular(path string) error {
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

// Summarize prints listeners, models and warnings; those about what files hold only if these may be opened.
func (l *Loaded) Summarize(out io.Writer, files bool) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "listener\taddress\twho may call\n")
	fmt.Fprintf(w, "clients\t%s%s\t%s\n", l.Listen.Clients, l.Listen.ClientsTLS.note(), l.whoClients())
	fmt.Fprintf(w, "agents\t%s\n", l.whoAgents())
	fmt.Fprintf(w, "operations\t%s\t%s\n", l.Listen.Operations, l.whoOperations())
	if l.Listen.Admin != "" {
		fmt.Fprintf(w, "admin\t%s\n", l.whoAdmins())
	}
	fmt.Fprintf(w, "\nmetadata\t%s\n\n", l.WhereRecords())
	fmt.Fprintf(w, "model\tconnector\trule\trole\tengine\turl\n")
	for _, m := range l.Models {
		first := fmt.Sprintf("%s\t%s\t%s", m.Name, cmp.Or(m.Connector, connector.Default), l.Routing.Rule(m.Name))
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
	for _, text := range l.Warnings(files) {
		if _, err := fmt.Fprintf(out, "\nWARNING: %s\n", text); err != nil {
			return err
		}
	}
	return nil
}

func (l *Loaded) whoClients() string {
	switch c := l.Auth.Clients; {
	case !c.On():
		return "EVERYBODY: no authentication"
	case c.APIKeysFile == "":
		return "tokens of " + c.issuerNames()
	case !c.TokenAuth.On():
		return "API keys"
	default:
		return "API keys, tokens of " + c.issuerNames()
	}
}

func (l *Loaded) whoAgents() string {
	if l.Listen.Agents == "" {
		return "none"
	}
	return l.Listen.Agents + l.Listen.AgentsTLS.note() + "\ttokens of " + l.Auth.Agents.issuerNames()
}

func (l *Loaded) whoOperations() string {
	if !l.Auth.Admins.On() {
		return "everybody who reaches it"
	}
	return "probes: everybody who reaches it; the rest: tokens of " + l.Auth.Admins.issuerNames()
}

// WhereRecords says where records are kept, for people.
func (l *Loaded) WhereRecords() string {
	where := "in this process"
	if l.Metadata.Store == "redis" {
		where = l.Metadata.Redis.Where()
	}
	if l.Auth.Records.KeyFile != "" {
		return where + ", signed"
	}
	return where + ", not signed"
}

// slowest is the least migration.bytes_per_second that is not thought to lack its unit: a small model's KV has tens of KiB a token.
const slowest = 1 << 20

// Warnings are what is allowed and seldom intended.
func (l *Loaded) Warnings(files bool) []string {
	all := append(l.Auth.DevelopmentWarnings(), l.Tenants.Warnings()...)
	all = append(all, l.engineWarnings()...)
	if files {
		all = append(append(all, l.tenantWarnings()...), l.trustedWarnings()...)
		all = append(all, l.emptyKeysWarnings()...)
	}
	if !l.Auth.Clients.On() && Reachable(l.Listen.Clients) {
		all = append(all, fmt.Sprintf("whoever reaches %s can use the engines: auth.clients has neither api_keys_file nor keys", l.Listen.Clients))
	}
	if !l.Auth.Admins.On() && Reachable(l.Listen.Operations) {
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
	if d := l.Migration.PinnedFor; d >= config.PinnedByDefault {
		all = append(all, fmt.Sprintf("migration.pinned_for is %v: an engine frees what it pins after %v, unless its decoder_kv_blocks_ttl is longer, and moves would read other tokens", d, config.PinnedByDefault))
	}
	if b := l.Migration.BytesPerSecond; b > 0 && b < slowest {
		all = append(all, fmt.Sprintf("migration.bytes_per_second is %d bytes: hardly any move of a conversation would end in time; units are KiB, MiB and GiB", b))
	}
	costs := func(m config.Model) bool { return l.Routing.Costs(m.Name) }
	if l.Queue.ByObjective && !slices.ContainsFunc(l.Models, costs) {
		all = append(all, "queue.by_objective has no effect: no model has the policy cost")
	}
	used := map[string]bool{}
	for _, m := range l.Models {
		used[l.Routing.Rule(m.Name)] = true
	}
	for _, rule := range l.Routing.Rules() {
		if !used[rule] {
			all = append(all, fmt.Sprintf("rule %q of the policy decides for no model of this configuration", rule))
		}
	}
	return all
}

// checkSources reads every file of engines as serve would, but for those left out.
func (l *Loaded) checkSources(out map[string]bool) error {
	var errs []error
	for i := range l.Models {
		m := &l.Models[i]
		for _, at := range EngineLists(m) {
			if at.Source.File == "" || out[at.Source.File] {
				continue
			}
			b, err := os.ReadFile(at.Source.File)
			if err != nil {
				continue // said of the file already
			}
			if _, err := ReadEngines(*m, at.Key, at.Source.File, b); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func (l *Loaded) whoAdmins() string {
	return l.Listen.Admin + l.Listen.AdminTLS.note() + "\ttokens of " + l.Auth.Admins.issuerNames()
}

// describeSource says where more engines of a list come from, for people; "" if from nowhere.
func describeSource(from config.Source) string {
	switch {
	case from.DNS != "":
		return "every address of " + from.DNS
	case from.File != "":
		return fmt.Sprintf("those of %s", from.File)
	case from.Kubernetes.On():
		return "pods of Kubernetes" + describePods(from.Kubernetes)
	}
	return ""
}

func describePods(k config.Kubernetes) string {
	text := ""
	for _, part := range []struct{ what, is string }{{", preset ", k.Preset}, {", workload ", k.Workload}, {", InferencePool ", k.InferencePool}, {", namespace ", k.Namespace}} {
		if part.is != "" {
			text += part.what + part.is
		}
	}
	return text
}
