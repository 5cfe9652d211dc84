// Package uitest drives the page at /ui with a real browser, against a gateway and engines that are processes. It is a module of its own,
// so that pdrouter does not need chromedp.
package uitest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// pictures is the environment variable that names a folder for pictures of the page.
const pictures = "PDROUTER_PICTURES"

// browser is one tab.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	errors []string // of the page: exceptions, and what its policy has refused
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	var path string
	for _, name := range []string{"chromium-headless-shell", "chromium"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		t.Fatal("there is no chromium: run internal/deps/chromium.sh")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WindowSize(1200, 900))
	all, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	b := &browser{t: t}
	var end context.CancelFunc
	b.ctx, end = chromedp.NewContext(all)
	t.Cleanup(end)
	if err := chromedp.Do(b.ctx, chromedp.Func(b.follow)); err != nil { // it starts the browser, which lives as long as this context
		t.Fatal(err)
	}
	return b
}

// follow notes what goes wrong in the tab, as long as it lives.
func (b *browser) follow(ctx context.Context, tab *chromedp.Target) error {
	add := func(text string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.errors = append(b.errors, text)
	}
	thrown, entries := cdp.Events(b.ctx, tab, runtime.ExceptionThrown), cdp.Events(b.ctx, tab, log.EntryAdded)
	go func() {
		for e, err := range thrown {
			if err != nil {
				return
			}
			add(fmt.Sprint(e.ExceptionDetails.Text, " ", e.ExceptionDetails.Exception))
		}
	}()
	go func() {
		for e, err := range entries {
			if err != nil {
				return
			}
			if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork { // a 401 is no error of the page
				add(e.Entry.Text)
			}
		}
	}()
	_, err := cdp.Call(ctx, tab, log.Enable, cdp.Empty{})
	return err
}

// value runs an action that has a value.
func value[T any](b *browser, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.body.innerText`))
		b.t.Fatalf("%v; the page has:\n%s", err, tail(text, 3000))
	}
	return v
}

func (b *browser) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	for _, a := range actions {
		value(b, a)
	}
}

// eval returns the value of an expression.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	return value(b, chromedp.Evaluate[T](expression))
}

// do runs a script.
func (b *browser) do(script string) {
	b.t.Helper()
	eval[chromedp.Void](b, script)
}

// until waits until an expression is true.
func (b *browser) until(expression string) {
	b.t.Helper()
	for end := time.Now().Add(25 * time.Second); !eval[bool](b, "Boolean("+expression+")"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("never: %s; the page has:\n%s", expression, tail(eval[string](b, `document.body.innerText`), 3000))
		}
	}
}

// stateOf is the expression for what the page says of an engine's state.
func stateOf(engine string) string {
	return fmt.Sprintf(`document.querySelector('#engines tr[data-engine=%q] .badge')?.innerText`, engine)
}

// press clicks a button of the page and answers the question that follows.
func (b *browser) press(selector, answer string) {
	b.t.Helper()
	b.run(chromedp.Click(chromedp.CSS(selector)), chromedp.WaitVisible(chromedp.CSS(`#confirm[open]`)),
		chromedp.Click(chromedp.CSS(fmt.Sprintf(`#confirm button[value=%s]`, answer))))
	b.until(`!document.querySelector('#confirm').open`)
}

// signIn types a token into the page.
func (b *browser) signIn(token string) {
	b.t.Helper()
	b.run(chromedp.SendKeys(chromedp.CSS(`#token`), token+"\r"))
}

// picture keeps a picture of the page in the folder that the environment names, if any.
func (b *browser) picture(name string, width, height int64, dark, whole bool) {
	b.t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.run(chromedp.EmulateViewport(width, height), chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	}))
	folder := os.Getenv(pictures)
	if folder == "" {
		return
	}
	take := chromedp.CaptureScreenshot()
	if whole {
		take = chromedp.FullScreenshot(100)
	}
	b.run(chromedp.Sleep(300 * time.Millisecond))
	png := value(b, take)
	if err := os.WriteFile(filepath.Join(folder, name+".png"), png, 0o644); err != nil {
		b.t.Error(err)
	}
}

// TestPage does what people do on the page, in the order of a day that goes wrong.
func TestPage(t *testing.T) {
	f := startFleet(t, true)
	b := startBrowser(t)
	f.load(12)
	f.complete("tiny", "short", false, 4)
	if status := f.complete(hostile, "Hello", false, 1); status != 502 {
		t.Errorf("the failing engine's request is answered with %d; want 502", status)
	}

	b.run(chromedp.Navigate(f.admin + "/ui"))
	b.until(`document.querySelector('#signin')?.hidden === false`)
	if got := eval[string](b, `document.activeElement.id`); got != "token" {
		t.Errorf("the focus is on %q; want the field of the token", got)
	}
	b.signIn("no.such.token")
	b.until(`document.querySelector('#trouble').innerText.includes('not valid')`)
	b.signIn(f.tokens["read"])
	b.until(`document.querySelector('#content')?.hidden === false`)
	for _, name := range names {
		b.until(stateOf(name) + `?.includes('up')`)
	}
	if url := eval[string](b, `location.href`); url != f.admin+"/ui/" {
		t.Errorf("the address is %s; want nothing but the page's", url)
	}
	if n := eval[int](b, `localStorage.length + document.cookie.length`); n != 0 {
		t.Error("something is kept beyond the tab")
	}

	b.until(`document.querySelectorAll('#recent .request').length >= 14`)
	if n := eval[int](b, `document.querySelectorAll('#recent .request .legs i[data-part=prefill]').length`); n < 12 {
		t.Errorf("%d requests show a prefill leg; want 12", n)
	}
	checkInjection(t, b)
	checkContrast(t, b)
	b.picture("whole-light", 1200, 900, false, true)
	b.picture("whole-dark", 1200, 900, true, true)
	checkContrast(t, b)
	b.picture("whole-phone", 360, 740, false, true)
	if w := eval[int](b, `document.documentElement.scrollWidth`); w > 360 {
		t.Errorf("the page is %d pixels wide on a phone of 360", w)
	}
	checkNames(t, b)
	b.picture("top", 1200, 900, false, false)

	// A token that may only look changes nothing.
	drainOne := `button[aria-label="Drain prefill-1"]`
	b.press(drainOne, "yes")
	b.until(`document.querySelector('#notice').innerText.includes('does not have the scope engines')`)
	b.run(chromedp.Click(chromedp.CSS(`#signout`)))
	b.until(`document.querySelector('#signin')?.hidden === false`)
	b.signIn(f.tokens["all"])
	b.until(`document.querySelector('#content')?.hidden === false`)

	b.until(`[...document.querySelectorAll('#engines tbody tr')].filter((r) => r.innerText.includes('% in use')).length === 4`) // what engines say of themselves
	all := eval[int](b, `document.querySelectorAll('#recent details').length`)
	b.run(chromedp.SendKeys(chromedp.CSS(`#filter-text`), "PREFILL-1"))
	b.until(`document.querySelector('#filtered').innerText !== ''`)
	b.until(`[...document.querySelectorAll('#recent .where')].every((e) => e.innerText.includes('prefill-1'))`)
	if n := eval[int](b, `document.querySelectorAll('#recent details').length`); n == 0 || n >= all {
		t.Errorf("%d of %d requests went to prefill-1", n, all)
	}
	choose := func(text, outcome string) {
		b.do(fmt.Sprintf(`document.querySelector('#filter-text').value = %q; document.querySelector('#filter-outcome').value = %q; document.querySelector('#filter-text').dispatchEvent(new Event('input'))`, text, outcome))
	}
	choose("", "failed")
	b.until(`document.querySelectorAll('#recent details').length > 0 && [...document.querySelectorAll('#recent .badge')].every((e) => e.innerText.includes('failed'))`)
	choose("", "")
	b.until(`document.querySelector('#filtered').innerText === ''`)

	b.press(drainOne, "no")
	if state := f.adminState("prefill-1"); state != "up" {
		t.Errorf("prefill-1 is %s after a question that was answered with no", state)
	}
	b.press(drainOne, "yes")
	b.until(stateOf("prefill-1") + `?.includes('draining')`)
	if state := f.adminState("prefill-1"); state != "drained" {
		t.Errorf("prefill-1 is %s; want drained", state)
	}
	b.until(`[...document.querySelectorAll('#moves tbody tr')].some((r) => r.innerText.includes('dry run') && r.innerText.includes('prefill-1'))`)
	b.do(`document.querySelector('#moves').scrollIntoView()`)
	b.picture("moves", 1200, 900, false, false)
	b.until(`document.querySelector('button[aria-label="Undrain prefill-1"]')`)
	b.press(`button[aria-label="Undrain prefill-1"]`, "yes")
	b.until(stateOf("prefill-1") + `?.includes('up')`)

	b.do(`document.querySelector('button[aria-label="Drain decode-0"]').focus()`) // which stays there while rows come and change
	if err := f.engines["decode-1"].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	b.until(stateOf("decode-1") + `?.includes('down')`)
	b.until(`document.querySelector('#problems li[data-alert=PdrouterEngineOut]')?.innerText.includes('decode-1')`)
	b.until(`(() => { const p = document.querySelector('#problems li[data-alert=PdrouterEngineOut]').innerText; return p.includes('warning') && p.includes('Since ') })()`)
	b.until(`document.querySelector('#problems [data-clients]').innerText.startsWith('In the last minute ')`)
	t.Logf("the page shows a killed engine after %.1f s", time.Since(killed).Seconds())
	b.until(`document.querySelector('#pairs tbody tr .badge').innerText.includes('not ready')`)
	if got := eval[string](b, `document.activeElement.getAttribute('aria-label') ?? ''`); got != "Drain decode-0" {
		t.Errorf("the focus has moved to %q", got)
	}

	f.rewrite(strings.Replace(f.config, "min_prompt_tokens: 16", "min_prompt_tokens: 20", 1))
	b.press(`#reload`, "yes")
	b.until(`document.querySelector('#notice').innerText.includes('taken into use')`)
	f.rewrite(strings.Replace(f.config, "round_robin", "no_such_policy", 1))
	b.press(`#reload`, "yes")
	b.until(`document.querySelector('#notice').innerText.includes('no_such_policy')`)
	b.until(`document.querySelector('#mistakes').innerText.includes('no_such_policy')`)

	b.run(chromedp.SetValue(chromedp.CSS(`#explain-model`), "tiny"), chromedp.SendKeys(chromedp.CSS(`#explain-prompt`), strings.Repeat("where does this go? ", 20)),
		chromedp.Click(chromedp.CSS(`#explain-form button`)))
	b.until(`document.querySelector('#explained').innerText.includes('decode-0')`)

	f.rewrite(strings.Replace(f.config, policy, "", 1)) // the policy cost, which has prices
	b.press(`#reload`, "yes")
	b.until(`document.querySelector('#notice').innerText.includes('taken into use') && document.querySelector('#mistakes').hidden`)
	b.run(chromedp.Click(chromedp.CSS(`#explain-form button`)))
	b.until(`document.querySelector('#explained').innerText.includes('the cheapest first')`)
	checkContrast(t, b)
	b.picture("whole-failing", 1200, 900, false, true)

	checkAudit(t, f)

	runbook := eval[string](b, `document.querySelector('#problems li[data-alert=PdrouterEngineOut] a').href`)
	b.run(chromedp.Navigate(runbook)) // what to do, without a token
	b.until(`document.querySelector('section:target h2')?.innerText === 'PdrouterEngineOut'`)
	checkContrast(t, b)
	b.picture("runbook", 1200, 900, false, false)

	b.run(chromedp.Navigate(f.ops + "/ui")) // the same, without what only listen.admin has
	b.until(`document.querySelector('#signin')?.hidden === false`)
	b.signIn(f.tokens["all"])
	b.until(`document.querySelector('#nodrain')?.checkVisibility()`)
	if n := eval[int](b, `[...document.querySelectorAll('#engines button')].filter((e) => e.checkVisibility()).length`); n != 0 {
		t.Errorf("%d buttons drain engines where no route does", n)
	}

	b.mu.Lock()
	if len(b.errors) > 0 {
		t.Errorf("the browser reports:\n%s", strings.Join(b.errors, "\n"))
	}
	b.mu.Unlock()
	if refused := eval[bool](b, `(() => { try { document.createElement('p').innerHTML = '<i></i>'; return false } catch { return true } })()`); !refused {
		t.Error("the policy lets text become markup")
	}
}

// TestPictures takes the pictures of the documentation: a fleet at work, in which an engine has died and one is drained.
func TestPictures(t *testing.T) {
	if os.Getenv(pictures) == "" {
		t.Skip("SKIPPED: " + pictures + " names no folder")
	}
	f := startFleet(t, false)
	b := startBrowser(t)
	f.load(6)
	if err := f.engines["decode-1"].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	f.load(6)
	b.run(chromedp.Navigate(f.admin + "/ui"))
	b.until(`document.querySelector('#signin')?.hidden === false`)
	b.signIn(f.tokens["all"])
	b.until(stateOf("decode-1") + `?.includes('down')`)
	b.press(`button[aria-label="Drain prefill-1"]`, "yes")
	b.until(stateOf("prefill-1") + `?.includes('draining')`)
	b.do(`document.querySelector('#notice').textContent = ''`)
	var load sync.WaitGroup
	defer load.Wait()
	for i := range 3 {
		load.Go(func() {
			f.complete("tiny", fmt.Sprintf("long %d: ", i)+strings.Repeat("blocks on the move ", 40), true, 2000)
		})
	}
	b.until(`document.querySelectorAll('#live li').length >= 2`)
	b.picture("page", 1000, 1500, false, false)
	b.run(chromedp.EmulateViewport(360, 740))
	b.do(`document.querySelector('#requests').scrollIntoView({ behavior: 'instant' })`)
	b.picture("page-phone", 360, 740, true, false)
}

// checkInjection: what engines and configurations say is shown as text.
func checkInjection(t *testing.T, b *browser) {
	t.Helper()
	b.do(`document.querySelectorAll('#recent details').forEach((d) => { d.open = true; })`)
	b.until(`document.querySelector('#failures tbody').innerText.includes('onerror=')`)
	b.until(`document.querySelector('#queues').innerText.includes('<b>bold</b>')`)
	b.until(`[...document.querySelectorAll('#recent dd')].some((d) => d.innerText.includes('onerror='))`)
	if n := eval[int](b, `document.querySelectorAll('main img, main b:not(.tiles b), main script').length`); n != 0 {
		t.Errorf("%d elements come from what an engine says", n)
	}
	if eval[bool](b, `window.injected === 1`) {
		t.Error("an engine's answer has run as a script")
	}
	b.do(`document.querySelectorAll('#recent details').forEach((d, i) => { d.open = i === 2; })`)
}

// checkContrast: text has a contrast of 4.5 or more with what is behind it (WCAG 2.2, 1.4.3).
func checkContrast(t *testing.T, b *browser) {
	t.Helper()
	for _, bad := range eval[[]string](b, contrast) {
		t.Error("contrast: ", bad)
	}
}

const contrast = `(() => {
  const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return { rgb: m.slice(0, 3), a: m[3] ?? 1 }; };
  const light = (rgb) => { const [r, g, b] = rgb.map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const back = (el) => { for (; el; el = el.parentElement) { const c = parse(getComputedStyle(el).backgroundColor); if (c.a === 1) return c.rgb; } return [255, 255, 255]; };
  const bad = new Set();
  for (const el of document.querySelectorAll('body *')) {
    if (!el.checkVisibility() || ![...el.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const [x, y] = [light(parse(getComputedStyle(el).color).rgb), light(back(el))].sort((a, b) => b - a);
    const c = (x + 0.05) / (y + 0.05);
    if (c < 4.5) bad.add(el.tagName + ' ' + el.className + ' ' + el.textContent.slice(0, 30) + ': ' + c.toFixed(2));
  }
  return [...bad];
})()`

// checkNames: the page has its landmarks, and whatever can be used with a keyboard has a name.
func checkNames(t *testing.T, b *browser) {
	t.Helper()
	for _, bad := range eval[[]string](b, `[...document.querySelectorAll('button, input, select, textarea, meter, progress, [role=img]')].filter((e) => e.checkVisibility()
		&& !(e.innerText?.trim() && e.tagName === 'BUTTON') && !e.getAttribute('aria-label') && !e.labels?.length).map((e) => e.outerHTML.slice(0, 80))`) {
		t.Error("without a name: ", bad)
	}
	for _, want := range []string{"header", "nav[aria-label]", "main", "footer", "html[lang]", "h1"} {
		if eval[int](b, fmt.Sprintf(`document.querySelectorAll(%q).length`, want)) != 1 {
			t.Errorf("the page has not one %s", want)
		}
	}
	if got := eval[string](b, `document.querySelector('a, button, input, select, textarea, summary, [tabindex]').className`); got != "skip" {
		t.Errorf("the first stop of the keyboard is %q; want the link to the content", got)
	}
	b.do(`document.querySelector('#reload').focus()`) // a question by keyboard: Enter asks it, Escape means no, and the focus is where it was
	b.run(chromedp.KeyEvent("\r"))
	b.until(`document.querySelector('#confirm').open && document.activeElement.value === 'no'`)
	b.run(chromedp.KeyEvent("\u001b"))
	b.until(`!document.querySelector('#confirm').open && document.activeElement.id === 'reload'`)
}

// checkAudit: the log says who did what, and has no token.
func checkAudit(t *testing.T, f *fleet) {
	t.Helper()
	text := f.log("gateway")
	for _, want := range []string{`"action":"drain","subject":"ann"`, `"action":"undrain","subject":"ann"`, `"action":"reload","subject":"ann"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the log has no line with %s", want)
		}
	}
	for scope, token := range f.tokens {
		if _, signature, _ := strings.Cut(token, "."); strings.Contains(text, token) || strings.Contains(text, signature) {
			t.Errorf("the log has the token with %s", scope)
		}
	}
}

// adminState is what the admin routes say of an engine.
func (f *fleet) adminState(name string) string {
	f.t.Helper()
	var e struct{ State string }
	if err := f.get("/admin/v1/engines/"+name, &e); err != nil {
		f.t.Error(err)
	}
	return e.State
}

// load sends n requests for disaggregation at once, of which some stream, and waits for their answers.
func (f *fleet) load(n int) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			f.complete("tiny", fmt.Sprintf("request %d: ", i)+strings.Repeat("blocks on the move ", 4+3*i), i%3 > 0, 8+4*i)
		})
	}
	all.Wait()
}

// rewrite replaces the configuration file in one step.
func (f *fleet) rewrite(text string) {
	f.t.Helper()
	path := filepath.Join(f.dir, "pdrouter.yaml")
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		f.t.Fatal(err)
	}
}
