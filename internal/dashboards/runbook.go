package dashboards

import (
	"fmt"
	"html"
	"regexp"
	"strings"
)

// reading is what both forms of the runbook begin with.
const reading = "A critical alert means that clients are harmed now; a warning, that they will be or that something is lost. What `/ui` on `listen.operations` " +
	"shows, `/status` and `/requests` say as JSON: `curl -s http://GATEWAY:9090/status | jq .problems`. `clients` in it says how many requests of the last " +
	"minute have failed, and how many first tokens came late. With `auth.admins` send a token with the scope `read`."

// Runbook returns the page that the alerts point to.
func Runbook() string {
	var b strings.Builder
	b.WriteString(`# Runbook

One section for each alert of [deploy/prometheus/alerts.yaml](../deploy/prometheus/alerts.yaml): what it means, where to look first, what to do.
What clients see instead of an alert is in [operations.md](operations.md#symptoms).

` + reading + "\n\n" + made + "\n\n| alert | severity | after | |\n| --- | --- | --- | --- |\n")
	for _, a := range Alerts() {
		b.WriteString("| [" + a.Name + "](#" + strings.ToLower(a.Name) + ") | " + a.Severity + " | " + a.For + " | " + firstSentence(a.Means) + " |\n")
	}
	for _, a := range Alerts() {
		b.WriteString("\n## " + a.Name + "\n```promql\n" + a.Expr + "\n```\n- **Meaning.** " + a.Means + "\n- **First look.** " + a.Look + "\n- **What to do.** " + a.Do + "\n")
		for i, step := range a.Steps {
			fmt.Fprintf(&b, "  %d. %s\n", i+1, step)
		}
	}
	return strings.ReplaceAll(b.String(), "do.** \n", "do.**\n")
}

// RunbookPage returns the same as a page that the gateway serves at /ui/runbook.html, so that it is there when nothing else is.
func RunbookPage() string {
	var b strings.Builder
	b.WriteString(`<!doctype html>
<!-- ` + made + ` -->
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>pdrouter: runbook</title>
<link rel="icon" href="icon.svg">
<link rel="stylesheet" href="style.css">
</head>
<body>
<header><h1>Runbook</h1></header>
<main>
<p><a href="./">What the gateway is doing</a></p>
<p>` + toHTML(reading) + "</p>\n<ul>\n")
	for _, a := range Alerts() {
		fmt.Fprintf(&b, "<li><a href=\"#%s\">%s</a> (%s): %s</li>\n", strings.ToLower(a.Name), a.Name, a.Severity, toHTML(firstSentence(a.Means)))
	}
	b.WriteString("</ul>\n")
	for _, a := range Alerts() {
		fmt.Fprintf(&b, "<section id=\"%s\">\n<h2>%s</h2>\n<p class=\"muted\">%s, after %s of <code>%s</code></p>\n", strings.ToLower(a.Name), a.Name, a.Severity, a.For, html.EscapeString(a.Expr))
		fmt.Fprintf(&b, "<p><strong>Meaning.</strong> %s</p>\n<p><strong>First look.</strong> %s</p>\n<p><strong>What to do.</strong> %s</p>\n", toHTML(a.Means), toHTML(a.Look), toHTML(a.Do))
		if len(a.Steps) > 0 {
			b.WriteString("<ol>\n")
			for _, step := range a.Steps {
				b.WriteString("<li>" + toHTML(step) + "</li>\n")
			}
			b.WriteString("</ol>\n")
		}
		b.WriteString("</section>\n")
	}
	b.WriteString("</main>\n</body>\n</html>\n")
	return b.String()
}

var (
	codes = regexp.MustCompile("`([^`]*)`")
	links = regexp.MustCompile(`\[([^\]]*)\]\(([a-z-]+\.md)[^)]*\)`)
)

// toHTML makes HTML of the Markdown in the table. The gateway serves no other page of the documentation, so links to them become their names.
func toHTML(text string) string {
	text = links.ReplaceAllString(html.EscapeString(text), "$1 (docs/$2)")
	return codes.ReplaceAllString(text, "<code>$1</code>")
}

func firstSentence(text string) string {
	first, _, _ := strings.Cut(text, ". ")
	return strings.TrimSuffix(first, ".") + "."
}
