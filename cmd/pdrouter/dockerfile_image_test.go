package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// step is one instruction of a Dockerfile.
type step struct {
	line     int
	do, rest string
}

// stage is what one FROM begins.
type stage struct {
	name, base string
	steps      []step
}

// parseDockerfile reads the part of the language that this repository's file uses, and refuses the rest.
func parseDockerfile(b []byte) ([]stage, error) {
	var stages []stage
	var words string
	begin := 0
	for i, line := range strings.Split(string(b), "\n") {
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || strings.HasPrefix(trimmed, "#") {
			continue
		}
		if words == "" {
			begin = i + 1
		}
		text, more := strings.CutSuffix(trimmed, "\\")
		words += text
		if more {
			continue
		}
		do, rest, _ := strings.Cut(words, " ")
		words = ""
		rest = strings.TrimSpace(rest)
		switch do {
		case "FROM":
			f := strings.Fields(rest)
			s := stage{base: f[0]}
			if len(f) == 3 && f[1] == "AS" {
				s.name = f[2]
			} else if len(f) != 1 {
				return nil, fmt.Errorf("line %d: FROM %s", begin, rest)
			}
			stages = append(stages, s)
		case "ARG", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "ENTRYPOINT", "CMD":
			if len(stages) == 0 {
				return nil, fmt.Errorf("line %d: %s before FROM", begin, do)
			}
			s := &stages[len(stages)-1]
			s.steps = append(s.steps, step{begin, do, rest})
		default:
			return nil, fmt.Errorf("line %d: unknown instruction %s", begin, do)
		}
	}
	return stages, nil
}

// last returns the last step of a kind in a stage.
func (s stage) last(t *testing.T, do string) step {
	t.Helper()
	for _, st := range slices.Backward(s.steps) {
		if st.do == do {
			return st
		}
	}
	t.Fatalf("stage %q has no %s", s.name, do)
	return step{}
}

// words reads the JSON form of ENTRYPOINT and CMD: the shell form would keep signals from the process.
func (st step) words(t *testing.T) []string {
	t.Helper()
	var list []string
	if err := json.Unmarshal([]byte(st.rest), &list); err != nil || len(list) == 0 {
		t.Fatalf("line %d: %s %s is not a list of words", st.line, st.do, st.rest)
	}
	return list
}

// image runs a Dockerfile's steps with one folder as the root of each stage.
type image struct {
	context string // the repository
	root    string
	args    []string // NAME=VALUE of build arguments
}

func (im image) path(stage, path string) string { return filepath.Join(im.root, stage, path) }

// build runs the COPY and RUN steps of a build stage.
func (im image) build(t *testing.T, s stage) error {
	t.Helper()
	dir, env := "/", os.Environ()
	for _, st := range s.steps {
		switch st.do {
		case "ARG":
			name, _, _ := strings.Cut(st.rest, "=")
			env = append(env, st.rest)
			for _, arg := range im.args {
				if strings.HasPrefix(arg, name+"=") {
					env = append(env, arg)
				}
			}
		case "WORKDIR":
			dir = st.rest
			if err := os.MkdirAll(im.path(s.name, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		case "COPY":
			im.copy(t, s.name, dir, st)
		case "RUN":
			if regexp.MustCompile(`(^|[\s=])/`).MatchString(st.rest) {
				t.Fatalf("line %d: RUN %s names an absolute path", st.line, st.rest)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", "-c", st.rest)
			cmd.Dir, cmd.Env = im.path(s.name, dir), env
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("line %d: RUN %s: %w\n%s", st.line, st.rest, err, out)
			}
		default:
			t.Fatalf("line %d: %s in a build stage", st.line, st.do)
		}
	}
	return nil
}

// copy does one COPY: from the context, or from an earlier stage.
func (im image) copy(t *testing.T, stage, dir string, st step) {
	t.Helper()
	words := strings.Fields(st.rest)
	source := func(path string) string { return filepath.Join(im.context, path) }
	if from, ok := strings.CutPrefix(words[0], "--from="); ok {
		words = words[1:]
		source = func(path string) string { return im.path(from, path) }
	}
	if len(words) < 2 {
		t.Fatalf("line %d: COPY %s", st.line, st.rest)
	}
	to := words[len(words)-1]
	if !filepath.IsAbs(to) {
		slash := strings.HasSuffix(to, "/") || to == "."
		if to = filepath.Join(dir, to); slash {
			to += "/"
		}
	}
	for _, w := range words[:len(words)-1] {
		target := im.path(stage, to)
		if info, err := os.Stat(source(w)); err != nil {
			t.Fatalf("line %d: COPY: %v", st.line, err)
		} else if !info.IsDir() && strings.HasSuffix(to, "/") {
			target = filepath.Join(target, filepath.Base(w))
		}
		if err := copyTree(source(w), target, im.ignored(t)); err != nil {
			t.Fatalf("line %d: COPY %s: %v", st.line, w, err)
		}
	}
}

// ignored returns the paths that .dockerignore keeps out of the context.
func (im image) ignored(t *testing.T) map[string]bool {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(im.context, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, line := range strings.Fields(string(b)) {
		if strings.ContainsAny(line, "*?[!#/") {
			t.Fatalf(".dockerignore: %s is not the name of a file or folder at the root", line)
		}
		all[filepath.Join(im.context, line)] = true
	}
	return all
}

func copyTree(from, to string, ignored map[string]bool) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone since the folder was listed
		case err != nil:
			return err
		case ignored[path]:
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		if !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, b, info.Mode().Perm())
	})
}
