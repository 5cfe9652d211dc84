package auth

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"pdrouter/internal/field"
)

// SubjectRule says what the bearers of a foreign issuer's tokens may do whose sub fits a pattern.
//
// A pattern is literal text, but that {name} in place of a whole segment stands for any text without '/' and ':'.
// Engine and Tenant are such a {name}, or fixed text. {pod} is the pod that a Kubernetes token is bound to.
type SubjectRule struct {
	Subject string   `yaml:"subject"` // the pattern
	Engine  string   `yaml:"engine"`  // for agents: the bearer's own engine; none if empty
	Role    string   `yaml:"role"`    // for agents: of that engine: prefill, decode or both
	Scopes  []string `yaml:"scopes"`  // what the bearer may do
	Models  []string `yaml:"models"`  // for clients: the models it may name; none means all
	Tenant  string   `yaml:"tenant"`  // for clients: the name in issuer|name under which its use is counted; default its subject
	Limits  Limits   `yaml:"limits"`  // for clients: of its use
}

// podName is the name in a rule that stands for the pod of a Kubernetes token.
const podName = "pod"

// rule is a SubjectRule made ready for matching.
type rule struct {
	SubjectRule
	parts []string // the pattern, cut after and before each '/' and ':'
}

// segments cuts s at each '/' and ':' and keeps them, so that what was between two of them is one element.
func segments(s string) []string {
	var parts []string
	for {
		i := strings.IndexAny(s, "/:")
		if i < 0 {
			return append(parts, s)
		}
		parts = append(parts, s[:i], s[i:i+1])
		s = s[i+1:]
	}
}

// placeholder returns the name in "{name}".
func placeholder(s string) (string, bool) {
	if len(s) > 2 && s[0] == '{' && s[len(s)-1] == '}' {
		return s[1 : len(s)-1], true
	}
	return "", false
}

func (s SubjectRule) compile() (rule, error) {
	if s.Subject == "" {
		return rule{}, field.Errorf("subject", "is empty; want a pattern")
	}
	r := rule{SubjectRule: s, parts: segments(s.Subject)}
	seen := map[string]bool{}
	name := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	for _, part := range r.parts {
		n, ok := placeholder(part)
		switch {
		case !ok && strings.ContainsAny(part, "{}"), ok && !name.MatchString(n):
			return rule{}, field.Errorf("subject", "has %q; want {name}, in small letters, to be all that stands between two of '/' and ':'", part)
		case !ok:
		case n == podName:
			return rule{}, field.Errorf("subject", "has {%s}, which is the pod of a Kubernetes token; want another name", podName)
		case seen[n]:
			return rule{}, field.Errorf("subject", "has {%s} twice", n)
		default:
			seen[n] = true
		}
	}
	for _, at := range []struct{ key, value string }{{"engine", s.Engine}, {"tenant", s.Tenant}} {
		n, ok := placeholder(at.value)
		if !ok && strings.ContainsAny(at.value, "{}") {
			return rule{}, field.Errorf(at.key, "is %q; want fixed text or one {name}", at.value)
		}
		if ok && n != podName && !seen[n] {
			return rule{}, field.Errorf(at.key, "is %q, which subject does not have", at.value)
		}
	}
	return r, nil
}

// validate reports every mistake of a rule for tokens of this audience, joined.
func (s SubjectRule) validate(audience string) error {
	var errs []error
	bad := func(path, format string, args ...any) { errs = append(errs, field.Errorf(path, format, args...)) }
	if _, err := s.compile(); err != nil {
		errs = append(errs, err)
	}
	if audience != MetadataAudience {
		if s.Engine != "" {
			bad("engine", "is %q; want none: these tokens are no agents'", s.Engine)
		}
		if s.Role != "" {
			bad("role", "is %q; want none: these tokens are no agents'", s.Role)
		}
	}
	if audience != ClientAudience {
		if len(s.Models) > 0 {
			bad("models", "is for clients only; want none")
		}
		if s.Tenant != "" {
			bad("tenant", "is for clients only; want none")
		}
		if s.Limits != (Limits{}) {
			bad("limits", "is for clients only; want none")
		}
	}
	switch s.Role {
	case "", "prefill", "decode", "both":
	default:
		bad("role", "is %q; want prefill, decode or both", s.Role)
	}
	if s.Models != nil && len(s.Models) == 0 {
		bad("models", "is empty; want models, or nothing of the kind for all")
	}
	if slices.Contains(s.Models, "") {
		bad("models", "has an empty name")
	}
	known := scopesOf(audience)
	if known != nil && len(s.Scopes) == 0 {
		bad("scopes", "is empty; want some of %s", strings.Join(known, ", "))
	}
	for _, scope := range s.Scopes {
		if known != nil && !slices.Contains(known, scope) {
			bad("scopes", "has %q; want some of %s", scope, strings.Join(known, ", "))
		} else if scope == "" || strings.ContainsAny(scope, " \"\\") {
			bad("scopes", "has %q; want single words", scope)
		}
	}
	return errors.Join(append(errs, field.Under("limits", s.Limits.Validate()))...)
}

// scopesOf returns the scopes that mean something to an audience; nil if any might.
func scopesOf(audience string) []string {
	switch audience {
	case MetadataAudience:
		return []string{WriteScope, ReadScope, PlaneScope}
	case AdminAudience:
		return []string{WriteScope, ReadScope, EnginesScope}
	}
	return nil
}

// match returns what the names of the pattern stand for in this subject. It takes time in proportion to the subject.
func (r rule) match(subject string) (map[string]string, bool) {
	got := segments(subject)
	if len(got) != len(r.parts) {
		return nil, false
	}
	names := map[string]string{}
	for i, part := range r.parts {
		if n, ok := placeholder(part); ok && got[i] != "" {
			names[n] = got[i]
		} else if part != got[i] || ok {
			return nil, false
		}
	}
	return names, true
}

// grant returns what the first rule that fits gives the subject. pod is "" if the token is bound to none.
func (i *issuer) grant(subject, pod string) (Principal, error) {
	for _, r := range i.rules {
		names, ok := r.match(subject)
		if !ok {
			continue
		}
		if pod != "" {
			names[podName] = pod
		}
		p := Principal{Subject: subject, Models: r.Models, Scopes: r.Scopes, Role: r.Role, Tenant: tenant(i.Issuer, subject), Limits: r.Limits}
		var err error
		if p.Engine, err = fill(r.Engine, names); err != nil {
			return Principal{}, fmt.Errorf("engine of %s: %w", r.Subject, err)
		}
		if r.Tenant != "" {
			name, err := fill(r.Tenant, names)
			if err != nil {
				return Principal{}, fmt.Errorf("tenant of %s: %w", r.Subject, err)
			}
			p.Tenant = tenant(i.Issuer, name)
		}
		return p, nil
	}
	return Principal{}, fmt.Errorf("no rule fits the subject %.200q", subject)
}

// fill returns what fixed text or a {name} stands for.
func fill(value string, names map[string]string) (string, error) {
	n, ok := placeholder(value)
	if !ok {
		return value, nil
	}
	if names[n] == "" {
		return "", fmt.Errorf("the token has no %s", n)
	}
	return names[n], nil
}
