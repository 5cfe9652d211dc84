package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// plainProxy is a target that takes a request to the first decode engine and back: one leg, and nothing read of it. It runs as
// one process with one thread, in the foreground.
type plainProxy struct {
	of      string
	version []string                                    // arguments with which it prints its version
	config  func(dir, listen, decode string) string     // its configuration file
	argv    func(binary, dir, file string) (a []string) // how it is run with it
}

// ProxyTargets are the proxies of one leg.
func ProxyTargets() []Target { return []Target{nginxTarget(), haproxyTarget()} }

// nginxTarget keeps its connections, logs nothing and passes bytes on as they come.
func nginxTarget() Target {
	return plainProxy{
		of: "nginx", version: []string{"-v"},
		argv: func(binary, dir, file string) []string {
			return []string{binary, "-p", dir, "-e", "stderr", "-c", file}
		},
		config: func(dir, listen, decode string) string {
			var temp strings.Builder
			for _, of := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
				fmt.Fprintf(&temp, "  %s_temp_path %s;\n", of, filepath.Join(dir, of))
			}
			return fmt.Sprintf(`daemon off;
master_process off;
worker_processes 1;
pid %s;
events { worker_connections 16384; }
http {
%s  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  upstream decode {
    server %s;
    keepalive 8192;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
  }
  server {
    listen %s;
    location / {
      proxy_pass http://decode;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 1h;
    }
  }
}
`, filepath.Join(dir, "pid"), temp.String(), decode, listen)
		},
	}.target()
}

// haproxyTarget is as bare as nginxTarget.
func haproxyTarget() Target {
	return plainProxy{
		of: "haproxy", version: []string{"-v"},
		argv: func(binary, _, file string) []string { return []string{binary, "-db", "-f", file} },
		config: func(_, listen, decode string) string {
			return fmt.Sprintf(`global
  nbthread 1
  maxconn 8192
  no strict-limits
defaults
  mode http
  option http-no-delay
  timeout connect 10s
  timeout client 1h
  timeout server 1h
  http-reuse always
frontend clients
  bind %s
  default_backend decode
backend decode
  server decode %s
`, listen, decode)
		},
	}.target()
}

// binary is where the proxy is installed, "" if it is not. Debian puts it where only root looks.
func (p plainProxy) binary() string {
	for _, name := range []string{p.of, "/usr/sbin/" + p.of} {
		if found, err := exec.LookPath(name); err == nil {
			return found
		}
	}
	return ""
}

func (p plainProxy) target() Target {
	return Target{Of: p.of, Legs: 1, Start: p.start,
		Cannot: func(Config, string) string {
			if p.binary() == "" {
				return "not installed; make peers installs it"
			}
			return ""
		},
		version: func() string {
			said, err := exec.Command(p.binary(), p.version...).CombinedOutput()
			if err != nil {
				return p.of
			}
			return p.of + " " + firstNumber(string(said))
		},
	}
}

func (p plainProxy) start(ctx context.Context, s *Stage) (*Child, error) {
	free, err := FreeAddresses(1)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pdrouter-bench-"+p.of+"-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "conf")
	var c *Child
	if err = os.WriteFile(file, []byte(p.config(dir, free[0], s.Decode[0].Address)), 0o644); err == nil {
		c, err = Spawn(ctx, p.of, s.Place.Target, false, false, p.argv(p.binary(), dir, file)...)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	c.Address, c.Files = free[0], []string{dir}
	return c, nil
}

// firstNumber is the first word of a text that looks like a version: "1.22.1" of "nginx version: nginx/1.22.1".
func firstNumber(text string) string {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r != '.' && (r < '0' || r > '9') }) {
		if strings.Contains(word, ".") {
			return strings.Trim(word, ".")
		}
	}
	return ""
}
