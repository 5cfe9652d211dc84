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
	ctx, cancel := context.WithTimeout(ctx, f.Wait)
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
	if err := f.await(ctx, all, out); err != nil {
		return config.Model{}, err
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

// sayAgain is how often it is said which engines have not answered yet.
const sayAgain = 15 * time.Second

// await asks all engines until each has answered. One that is reached and answers with an error is not waited for, but for 503: it starts.
func (f Fleet) await(ctx context.Context, all []Engine, out io.Writer) error {
	files := new(config.Secrets)
	begun, said := time.Now(), time.Time{}
	answered, why := make([]bool, len(all)), make([]error, len(all))
	for {
		var missing []string
		for i := range all {
			if answered[i] {
				continue
			}
			e := &all[i]
			e.Facts, e.Err = AskEngine(ctx, files, e.Entry)
			switch {
			case e.Err == nil:
				answered[i] = true
				if !said.IsZero() {
					fmt.Fprintf(out, "pdrouter: %s answers after %v\n", e.Entry.URL, time.Since(begun).Round(time.Second))
				}
			case ctx.Err() != nil || starts(e.Err):
				if why[i] == nil || ctx.Err() == nil { // else the end of the wait would hide what was wrong
					why[i] = e.Err
				}
				missing = append(missing, fmt.Sprintf("%s (%v)", e.Entry.URL, why[i]))
			default:
				return fmt.Errorf("%s: %w", e.Entry.URL, e.Err)
			}
		}
		if len(missing) == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no answer within %v from %s", f.Wait, strings.Join(missing, " and "))
		}
		if time.Since(said) >= sayAgain {
			said = time.Now()
			fmt.Fprintf(out, "pdrouter: waiting for %s, for at most %v\n", strings.Join(missing, " and "), (f.Wait - time.Since(begun)).Round(time.Second))
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// starts says of an error that the engine may be starting.
func starts(err error) bool {
	var status *StatusError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &status) && status.Status == http.StatusServiceUnavailable
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
