package leg

import (
	"net/netip"
	"regexp"
	"strings"
	"unicode"

	"pdrouter/router/connector"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
	"pdrouter/router/openai/answer"
	"pdrouter/router/openai/jsonscan"
)

const maxEngineMessage = 512 // bytes of an engine's message that a client receives

// MaskCredentials masks every credential that the engine received in a text for the log: the ticket, the gateway's and the client's.
func MaskCredentials(h *connector.Handoff, text string, e *fleet.Engine, f *Forwarded) string {
	for _, s := range [...]string{string(h.Ticket), e.Credential(), f.credential()} {
		text = maskCredential(text, s)
	}
	return text
}

// minMaskedPart is how many bytes of a credential are masked at the end of a text.
const minMaskedPart = 8

// maskCredential masks a credential in a text. At the end of the text it also masks the first part of one, as messages of engines are cut.
func maskCredential(text, s string) string {
	if s == "" {
		return text
	}
	text = strings.ReplaceAll(text, s, "[credential]")
	rest := strings.TrimSuffix(text, "...")
	for n := min(len(s), len(rest)); n >= minMaskedPart; n-- {
		if strings.HasSuffix(rest, s[:n]) {
			return rest[:len(rest)-n] + "[credential]" + text[len(rest):]
		}
	}
	return text
}

// Message returns the engine's message of its own failure, for the client: the message of an error in OpenAI's shape, or plain text.
// Addresses, tokens and the client's credential in it are masked. unwrapped says that the engine may send an error without a wrapper (see
// Traits.UnwrappedErrors). Message returns "" if the engine sent no message, or one that may contain data of the hand-off.
func (l *Leg) Message(h *connector.Handoff, unwrapped bool, f *Forwarded, engines ...[]*fleet.Engine) string {
	if l.Failure != nil || l.RefusedCredentials() {
		return ""
	}
	text := string(jsonscan.Unescape(nil, []byte(l.errorMessage(unwrapped))))
	if text == "" && l.Status != 200 && openai.MediaType(l.ContentType) == "text/plain" {
		text = string(l.Body[:min(len(l.Body), answer.MaxErrorMessage)])
	}
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "?"), func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if maskCredential(text, l.Engine.Credential()) != text {
		return ""
	}
	text = maskCredential(text, f.credential())
	if _, ok := h.WithoutHandoff([]byte(text)); !ok {
		return ""
	}
	for _, engines := range engines {
		for _, e := range engines {
			text = strings.ReplaceAll(text, e.Upstream.Address(), "[address]")
		}
	}
	text = colons.ReplaceAllStringFunc(text, func(s string) string {
		host, _, _ := strings.Cut(strings.TrimPrefix(s, "["), "]")
		if _, err := netip.ParseAddr(host); err != nil {
			return s
		}
		return "[address]"
	})
	for _, mask := range masks {
		text = mask.find.ReplaceAllString(text, mask.with)
	}
	return openai.Clip(text, maxEngineMessage)
}

// colons finds what may be an IPv6 address, with its port if it is in brackets.
var colons = regexp.MustCompile(`\[?[0-9A-Za-z_.%]*:[0-9A-Za-z_:.%]*:[0-9A-Za-z_%]*(?:\](?::[0-9]+)?)?`)

// masks are the parts of an engine's message that must not reach a client.
var masks = [...]struct {
	find *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>]+`), "[address]"},
	{regexp.MustCompile(`\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?::[0-9]+)?`), "[address]"},
	{regexp.MustCompile(`\b(?:[A-Za-z0-9-]+\.)+[A-Za-z0-9-]+:[0-9]{2,5}\b|\blocalhost(?::[0-9]+)?`), "[address]"},
	{regexp.MustCompile(`(?i)\bbearer\s+\S+`), "[token]"},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_.-]+`), "[token]"},
	{regexp.MustCompile(`\b(?:sk|hf)[-_][A-Za-z0-9_-]{8,}`), "[token]"},
}
