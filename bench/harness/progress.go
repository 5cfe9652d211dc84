package harness

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// progress tells how far a suite is: on a terminal in one line that is rewritten, elsewhere in a mark for each round. What else
// is written to it stands above that line. It is used by one goroutine.
type progress struct {
	out      io.Writer
	terminal bool
	width    int // of the terminal, in letters
	suite    string

	shown       bool // the line is on the terminal
	row         string
	marks       string // of the row's rounds: done, repeated (r), a peer that failed (x)
	began       time.Time
	first       time.Time // when the first round that counts began
	now         string    // what is measured
	done, total int       // rounds of systems
	repeated    int
}

// progressOn is a suite's progress to out.
func progressOn(out io.Writer, suite string) *progress {
	p := &progress{out: out, suite: suite, width: 80}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "" && os.Getenv("TERM") != "dumb"
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 20 {
		p.width = n
	}
	return p
}

// ProgressOf is the progress behind a writer that a comparison was given.
func ProgressOf(out io.Writer) *progress {
	if p, ok := out.(*progress); ok {
		return p
	}
	return progressOn(out, "")
}

// Write writes text above the line.
func (p *progress) Write(text []byte) (int, error) {
	p.clear()
	return p.out.Write(text)
}

// Begin begins a row.
func (p *progress) Begin(row string) {
	p.row, p.marks, p.began, p.done, p.total, p.repeated = row, "", time.Now(), 0, 0, 0
	if !p.terminal {
		fmt.Fprintf(p.out, "  %-28s ", row)
	}
}

// Doing says what is measured now: "round 3/6 baseline proxy".
func (p *progress) Doing(what string) {
	p.now = what
	line := []string{strings.TrimPrefix(p.suite+" › "+p.row, " › "), what, seconds(time.Since(p.began))}
	if p.done > 0 {
		left := time.Since(p.first) / time.Duration(p.done) * time.Duration(max(0, p.total-p.done))
		line[2] += ", " + seconds(left) + " left"
	}
	if p.repeated > 0 {
		line = append(line, fmt.Sprintf("%d repeated", p.repeated))
	}
	p.show("  " + strings.Join(line, " · "))
}

// Counts says that the rounds from now on count.
func (p *progress) Counts() { p.first = time.Now() }

// Measured says that a system has had one of so many rounds, which are all systems' together.
func (p *progress) Measured(total int) { p.done, p.total = p.done+1, total }

// again says that a round is repeated, so many of the row by now.
func (p *progress) again(repeated int) {
	p.repeated = repeated
	p.Mark("r")
	p.Doing(p.now)
}

// Mark notes what has become of a round.
func (p *progress) Mark(m string) {
	p.marks += m
	if !p.terminal {
		fmt.Fprint(p.out, m)
	}
}

// End ends the row. What is left of it is the same everywhere.
func (p *progress) End() {
	p.clear()
	if p.terminal {
		fmt.Fprintf(p.out, "  %-28s %s", p.row, p.marks)
	}
	fmt.Fprintf(p.out, " %s\n", seconds(time.Since(p.began)))
	p.prepares()
}

// prepares says that what comes next is being started, which is no row's time.
func (p *progress) prepares() {
	p.show("  " + cmp.Or(p.suite, "bench") + " · starting what comes next")
}

// show puts the line on the terminal, in place of the one that is there.
func (p *progress) show(line string) {
	if !p.terminal {
		return
	}
	if letters := []rune(line); len(letters) >= p.width { // a full line would wrap, and the next one not replace it
		line = string(letters[:p.width-2]) + "…"
	}
	fmt.Fprint(p.out, "\r\x1b[K"+line)
	p.shown = true
}

// clear takes the line off the terminal.
func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.shown = false
	}
}

// seconds is a duration for people who wait.
func seconds(d time.Duration) string {
	if d = d.Round(time.Second); d < 2*time.Minute {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
}
