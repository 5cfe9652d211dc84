package inspect

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"pdrouter/router/config"
	"pdrouter/router/connector"
)

// Engine is an engine of a configuration, and what was learned about it.
type Engine struct {
	Path  string // in the configuration, for example models[0].prefill[1]
	Role  Role
	Entry config.Engine
	Facts Facts
	Err   error // why nothing was learned
}

// Role is the list of the model that the engine stands in.
type Role string

// The lists of a model.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
	Both    Role = "engines"
)

// Finding is one thing that does not fit.
type Finding struct {
	Path    string // what it is about, for example models[0].prefill[1].url
	Text    string // what is wrong, and what to do
	Warning bool   // requests are served, but not as they could be
}

// String returns path and text.
func (f Finding) String() string { return f.Path + " " + f.Text }

// Compare returns what does not fit between a model's configuration and what its engines have said. It does no I/O.
func Compare(m config.Model, engines []Engine) []Finding {
	c := comparison{model: m}
	for _, e := range engines {
		if e.Err != nil {
			c.unreachable(e)
			continue
		}
		c.engine(e)
	}
	answered := slices.DeleteFunc(slices.Clone(engines), func(e Engine) bool { return e.Err != nil })
	c.sameRun(answered)
	c.contextLengths(answered)
	for _, p := range answered {
		for _, d := range answered {
			if p.Role == Prefill && d.Role == Decode {
				c.pair(p, d)
			}
		}
	}
	return c.found
}

type comparison struct {
	model config.Model
	found []Finding
}

func (c *comparison) wrong(path, format string, args ...any) {
	c.found = append(c.found, Finding{Path: path, Text: fmt.Sprintf(format, args...)})
}

func (c *comparison) warn(path, format string, args ...any) {
	c.found = append(c.found, Finding{Path: path, Text: fmt.Sprintf(format, args...), Warning: true})
}

// unreachable says why an engine could not be asked.
func (c *comparison) unreachable(e Engine) {
	path := e.Path + ".url"
	var status *StatusError
	var dns *net.DNSError
	var authority x509.UnknownAuthorityError
	switch err := e.Err; {
	case errors.As(err, &status) && (status.Status == 401 || status.Status == 403) && e.Entry.BearerTokenFile == "":
		c.wrong(e.Path, "the engine wants a key (status %d); name it in bearer_token_file", status.Status)
	case errors.As(err, &status) && (status.Status == 401 || status.Status == 403):
		c.wrong(e.Path+".bearer_token_file", "the engine refuses this key (status %d)", status.Status)
	case errors.As(err, &status) && status.Status == 404 && hasPath(e.Entry.URL):
		c.wrong(path, "is %q: %s was not found; leave the path out of the URL", e.Entry.URL, status.Path)
	case errors.As(err, &status) && status.Status == 404:
		c.wrong(path, "is %q: %s was not found there; is this an OpenAI-compatible engine?", e.Entry.URL, status.Path)
	case errors.As(err, &status):
		c.wrong(path, "is %q: %v", e.Entry.URL, err)
	case errors.As(err, &dns):
		c.wrong(path, "is %q: the name %s does not resolve", e.Entry.URL, dns.Name)
	case errors.Is(err, syscall.ECONNREFUSED):
		c.wrong(path, "is %q: connection refused; is the engine running, and is this its port?", e.Entry.URL)
	case errors.Is(err, context.DeadlineExceeded):
		c.wrong(path, "is %q: no answer within %v", e.Entry.URL, askFor)
	case errors.As(err, &authority):
		c.wrong(e.Path+".tls", "the engine's certificate is signed by an unknown authority; name it in tls.ca_file")
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		c.wrong(path, "is %q: the engine speaks HTTP without TLS; want http://", e.Entry.URL)
	default:
		c.wrong(path, "is %q: %v", e.Entry.URL, err)
	}
}

func hasPath(raw string) bool {
	u, err := url.Parse(raw)
	return err == nil && strings.Trim(u.Path, "/") != ""
}

// engine compares one engine with its entry.
func (c *comparison) engine(e Engine) {
	c.name(e)
	kind := e.Facts.Kind
	switch traits := c.model.Traits(); {
	case c.model.Connector == connector.Default:
		c.aggregated(e)
	case c.model.Publishes():
		if kind == SGLang {
			c.wrong(e.Path, "is %s; connector %s is for engines that load pdrouter's plane", kind, c.model.Connector)
		} else if e.Facts.HandOff != nil && e.Facts.HandOff.Mode != "" {
			c.wrong(e.Path, "runs vLLM's own NIXL connector (%s); connector %s wants PdrouterConnector", e.Facts.HandOff.Mode, c.model.Connector)
		}
	case traits.RequiresSplit && kind != SGLang:
		c.wrong(e.Path, "is %s; connector %s is for SGLang", kind, c.model.Connector)
	case traits.RequiresSplit:
		c.sglang(e)
	case traits.Stock != nil && kind == SGLang:
		c.wrong(e.Path, "is SGLang; connector %s is for vLLM, want connector sglang", c.model.Connector)
	case traits.Stock != nil:
		c.stock(e)
	}
}

// name checks that the engine serves the model.
func (c *comparison) name(e Engine) {
	var names []string
	for _, m := range e.Facts.Models {
		if m.Name == c.model.Name {
			return
		}
		names = append(names, strconv.Quote(m.Name))
	}
	c.wrong(e.Path, "does not serve model %q: it serves %s; set models[].name or the engine's --served-model-name", c.model.Name, strings.Join(names, ", "))
}

// aggregated checks an engine that serves requests alone.
func (c *comparison) aggregated(e Engine) {
	if d := e.Facts.Disaggr; d == "prefill" || d == "decode" {
		c.wrong(e.Path, "is a %s engine of SGLang, which serves no request alone; want connector sglang", d)
	}
	if h := e.Facts.HandOff; h != nil {
		c.warn(e.Path, "can hand KV off (%s), but connector %s does not use it", cmp.Or(h.Mode, "NIXL"), c.model.Connector)
	}
}

func (c *comparison) sglang(e Engine) {
	switch d := e.Facts.Disaggr; {
	case d == "":
	case d == "null":
		c.wrong(e.Path, "runs without --disaggregation-mode; want --disaggregation-mode %s", e.Role)
	case d != string(e.Role):
		c.wrong(e.Path, "runs with --disaggregation-mode %s, and stands in the list %s", d, e.Role)
	}
	if port := cmp.Or(e.Entry.BootstrapPort, connector.DefaultBootstrapPort); e.Role == Prefill && e.Facts.Bootstrap != 0 && e.Facts.Bootstrap != port {
		c.wrong(e.Path+".bootstrap_port", "is %d; the engine's is %d", port, e.Facts.Bootstrap)
	}
}

// stock checks an engine of vLLM with one of its own connectors.
func (c *comparison) stock(e Engine) {
	h, want := e.Facts.HandOff, c.model.Traits().Stock.TransferMode
	switch {
	case e.Facts.HandOffErr != nil:
		c.wrong(e.Path, "fails a request that is to be handed off: %v", e.Facts.HandOffErr)
		return
	case h == nil:
		c.wrong(e.Path, "hands no KV off; start it with --kv-transfer-config, as configs/%s.yaml shows", strings.Replace(c.model.Connector, "-nixl", "", 1))
		return
	case h.Mode != "" && h.Mode != want:
		c.wrong(e.Path, "runs vLLM's NIXL connector for %s; connector %s wants the one for %s", h.Mode, c.model.Connector, want)
	}
	reported := net.JoinHostPort(h.Host, strconv.Itoa(h.Port))
	if side := e.Entry.SideChannel; side != "" && !sameAddress(side, reported) {
		c.wrong(e.Path+".side_channel", "is %s; the engine says that its own is %s (VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT)", side, reported)
	}
	switch ip := net.ParseIP(h.Host); {
	case ip != nil && ip.IsUnspecified():
		c.wrong(e.Path, "names %s as its side channel, which no other host reaches; set VLLM_NIXL_SIDE_CHANNEL_HOST to the engine's address", reported)
	case loopback(h.Host) && !loopback(hostOf(e.Entry.URL)):
		c.wrong(e.Path, "names %s as its side channel, which no other host reaches; set VLLM_NIXL_SIDE_CHANNEL_HOST to the engine's address", reported)
	case e.Facts.SideErr != nil:
		c.wrong(e.Path, "its side channel %s does not answer: %v", reported, e.Facts.SideErr)
	}
	if tp := max(e.Entry.TensorParallel, 1); e.Role == Decode && h.TP != tp {
		c.wrong(e.Path+".tensor_parallel", "is %d; the engine has %d tensor-parallel ranks", tp, h.TP)
	}
	if e.Entry.RequestIDRandomizationDisabled && !h.PlainNames {
		c.wrong(e.Path+".request_id_randomization_disabled", "is true; the engine changes request ids, start it with VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1")
	}
	if e.Role == Decode && h.PlainNames && !e.Entry.RequestIDRandomizationDisabled {
		c.warn(e.Path+".request_id_randomization_disabled", "is not set, though the engine keeps request ids; set it to true, and the gateway can free KV that an ended request left there")
	}
	if !e.Facts.TokenDetail && e.Role == Prefill {
		c.warn(e.Path, "does not say how many tokens of a prompt were cached; start it with --enable-prompt-tokens-details")
	}
}

// sameRun finds one process under two entries.
func (c *comparison) sameRun(engines []Engine) {
	seen := map[string]Engine{}
	for _, e := range engines {
		h := e.Facts.HandOff
		if h == nil {
			continue
		}
		if other, ok := seen[h.EngineID]; ok && e.Entry.DataParallel <= 1 {
			c.wrong(e.Path, "is the same engine as %s: both say engine id %.80q", other.Path, h.EngineID)
		}
		seen[h.EngineID] = e
	}
}

// contextLengths warns where a prompt fits into one engine and not into another.
func (c *comparison) contextLengths(engines []Engine) {
	var first Engine
	for _, e := range engines {
		n, was := c.maxLen(e), c.maxLen(first)
		switch {
		case n == 0:
		case was == 0:
			first = e
		case n != was:
			c.warn(e.Path, "serves %d tokens of context, and %s %d; longer requests fail on one of them (--max-model-len)", n, first.Path, was)
		}
	}
}

func (c *comparison) maxLen(e Engine) int {
	for _, m := range e.Facts.Models {
		if m.Name == c.model.Name {
			return m.MaxLen
		}
	}
	return 0
}

// pair checks that KV can go from one engine to the other.
func (c *comparison) pair(p, d Engine) {
	if c.model.Traits().Stock == nil {
		return
	}
	if v, w := p.Facts.Version, d.Facts.Version; v != "" && w != "" && v != w {
		c.wrong(d.Path, "runs vLLM %s, and %s vLLM %s; KV goes only between engines of one version", w, p.Path, v)
	}
	ph, dh := p.Facts.HandOff, d.Facts.HandOff
	if ph != nil && dh != nil && ph.TP%dh.TP != 0 && dh.TP%ph.TP != 0 {
		c.wrong(d.Path, "has %d tensor-parallel ranks, and %s %d; one must be a multiple of the other", dh.TP, p.Path, ph.TP)
	}
	ps, ds := p.Facts.Side, d.Facts.Side
	if ps == nil || ds == nil {
		return
	}
	if a, b := ps.Layout.BlockTokens, ds.Layout.BlockTokens; a != b && a > 0 && b > 0 && max(a, b)%min(a, b) != 0 {
		c.wrong(d.Path, "has KV blocks of %d tokens, and %s of %d; one must be a multiple of the other (--block-size)", b, p.Path, a)
	} else if ps.Compatibility != ds.Compatibility {
		c.wrong(d.Path, "has another compatibility digest than %s: model, weights' type, cache type, attention backend and vLLM version must be the same", p.Path)
	}
}

func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// sameAddress reports whether two host:port are the same. Names are not resolved: of these only the ports are compared.
func sameAddress(a, b string) bool {
	ah, ap, aErr := net.SplitHostPort(a)
	bh, bp, bErr := net.SplitHostPort(b)
	if aErr != nil || bErr != nil || ap != bp {
		return false
	}
	ai, bi := net.ParseIP(ah), net.ParseIP(bh)
	return ai == nil || bi == nil || ai.Equal(bi) || loopback(ah) && loopback(bh)
}
