package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"pdrouter/internal/configfile"
	"pdrouter/router/config"
)

// Fleet are the engines of one model by their base URLs, of which nothing else is known yet.
type Fleet struct {
	Prefill, Decode []string
	Engines         []string // that serve requests alone
	Name            string   // of the model; "": the first that every engine serves
	BearerTokenFile string   // for all engines; "" for none
	Wait            time.Duration
}

// Model asks the engines and returns the model that they make. It waits for those that do not answer yet, for Wait in all, and tells out for
// which. It fails if they do not fit together; the error joins every mistake.
func (f Fleet) Model(ctx context.Context, out io.Writer) (config.Model, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.Wait, fmt.Errorf("not every engine has answered within %v", f.Wait))
	defer cancel()
	var all []Engine
	for _, list := range []struct {
		role Role
		name string
		urls []string
	}{{Prefill, "prefill", f.Prefill}, {Decode, "decode", f.Decode}, {Both, "engine", f.Engines}} {
		for i, url := range list.urls {
			e := config.Engine{Name: fmt.Sprintf("%s-%d", list.name, i), URL: strings.TrimSuffix(url, "/"), BearerTokenFile: f.BearerTokenFile}
			all = append(all, Engine{Role: list.role, Entry: e})
		}
	}
	files := new(config.Secrets)
	for i := range all {
		if err := awaitEngine(ctx, files, &all[i], out); err != nil {
			return config.Model{}, err
		}
	}
	m, err := Learn(f.Name, all)
	if err != nil {
		return config.Model{}, err
	}
	for i := range all {
		all[i].Path = all[i].Entry.URL
	}
	var mistakes []error
	for _, finding := range Compare(m, all) {
		if finding.Warning {
			fmt.Fprintf(out, "pdrouter: warning: %v\n", finding)
			continue
		}
		mistakes = append(mistakes, errors.New(finding.String()))
	}
	return m, errors.Join(mistakes...)
}

// awaitEngine asks an engine until it answers. One that is reached and answers with an error is not waited for, but for 503: it starts.
func awaitEngine(ctx context.Context, files *config.Secrets, e *Engine, out io.Writer) error {
	for told := false; ; told = true {
		e.Facts, e.Err = AskEngine(ctx, files, e.Entry)
		var status *StatusError
		starts := errors.Is(e.Err, syscall.ECONNREFUSED) || errors.Is(e.Err, context.DeadlineExceeded) || errors.As(e.Err, &status) && status.Status == http.StatusServiceUnavailable
		switch {
		case e.Err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%w; %s: %w", context.Cause(ctx), e.Entry.URL, e.Err)
		case !starts:
			return fmt.Errorf("%s: %w", e.Entry.URL, e.Err)
		case !told:
			fmt.Fprintf(out, "pdrouter: waiting for %s: %v\n", e.Entry.URL, e.Err)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// Probe asks every engine of a configuration's models, and returns what does not fit.
func Probe(ctx context.Context, models []config.Model) []Finding {
	var all []Finding
	files := new(config.Secrets)
	for i, m := range models {
		var engines []Engine
		for _, list := range configfile.EngineLists(&m) {
			for j, entry := range *list.Engines {
				e := Engine{Path: configfile.Element(configfile.Element("models", i)+"."+list.Key, j), Role: Role(list.Key), Entry: entry}
				e.Facts, e.Err = AskEngine(ctx, files, entry)
				engines = append(engines, e)
			}
		}
		all = append(all, Compare(m, engines)...)
	}
	return all
}
