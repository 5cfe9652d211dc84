package router_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pdrouter/internal/routertest"
	"pdrouter/router"
	"pdrouter/router/config"
	"pdrouter/router/connector"
	"pdrouter/router/upstream"
)

// testCA issues certificates into a folder.
type testCA struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newTestCA(t *testing.T) *testCA {
	c := &testCA{t: t, dir: t.TempDir()}
	c.cert, c.key = c.issue("ca", "ca")
	return c
}

// issue writes NAME.pem and NAME.key, a certificate for the name of a host.
func (c *testCA) issue(name, host string) (*x509.Certificate, *ecdsa.PrivateKey) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: c.cert == nil, BasicConstraintsValid: true,
	}
	parent, signer := template, key
	if c.cert != nil {
		parent, signer = c.cert, c.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		c.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		c.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(c.path(name+file), pem.EncodeToMemory(block), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		c.t.Fatal(err)
	}
	return cert, key
}

func (c *testCA) path(name string) string { return filepath.Join(c.dir, name) }

// tlsServer is a server that wants a certificate of the CA from its clients, and notes whose it was.
type tlsServer struct {
	*httptest.Server
	mu   sync.Mutex
	came map[string]string // by path, the last one
}

func (c *testCA) serve(handler http.Handler) *tlsServer {
	c.t.Helper()
	c.issue("engine", "engine.test")
	pair, err := tls.LoadX509KeyPair(c.path("engine.pem"), c.path("engine.key"))
	if err != nil {
		c.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(c.cert)
	s := &tlsServer{came: map[string]string{}}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.came[r.URL.Path] = r.TLS.PeerCertificates[0].Subject.CommonName
		s.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	s.StartTLS()
	c.t.Cleanup(s.Close)
	return s
}

func (s *tlsServer) of(path string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.came[path]
}

// TestEngineTLS has an engine with a certificate of a private CA that wants one of the gateway: everything that the gateway asks
// shows it, a renewed one is shown from then on by the same engine, and one that cannot be used changes nothing.
func TestEngineTLS(t *testing.T) {
	ca := newTestCA(t)
	ca.issue("gateway", "first")
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	server := ca.serve(s.Decode[0].Server.Config.Handler)
	entry := &s.Config.Models[0].Engines[0]
	entry.URL = server.URL
	entry.TLS = config.TLS{CAFile: ca.path("ca.pem"), CertFile: ca.path("gateway.pem"), KeyFile: ca.path("gateway.key"), ServerName: "engine.test"}
	s.Config.Timeouts.Health = 50 * time.Millisecond
	parts := router.Parts{Planner: routertest.FirstUsable{}}
	g := routertest.Start(t, s.Config, parts)
	g.MustServe(1, routertest.PlainBody)
	asked := []string{routertest.PathCompletions, "/health", routertest.PathModels}
	for _, path := range asked {
		routertest.Eventually(t, path+" was asked for with the certificate", func() bool { return server.of(path) == "first" })
	}
	e := g.Router.Debug().Engine(entry.Name)

	ca.issue("gateway", "second")
	if err := g.Router.Reload(s.Config, parts); err != nil {
		t.Fatal(err)
	}
	server.CloseClientConnections()
	routertest.Eventually(t, "health was asked for with the new certificate", func() bool { return server.of("/health") == "second" })
	g.MustServe(1, routertest.PlainBody)
	if got := server.of(routertest.PathCompletions); got != "second" || g.Router.Debug().Engine(entry.Name) != e {
		t.Errorf("a request showed %q; want the renewed certificate, by the same engine", got)
	}

	if err := os.WriteFile(ca.path("gateway.pem"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.Router.Reload(s.Config, parts); err == nil || !strings.Contains(err.Error(), "models[0].engines[0]: tls.cert_file: ") {
		t.Errorf("a file that is no certificate: %v", err)
	}
	server.CloseClientConnections()
	g.MustServe(1, routertest.PlainBody)
}

// TestEngineTLSIsVerified has engines whose certificates are not what their entries say: none is asked anything.
func TestEngineTLSIsVerified(t *testing.T) {
	ca := newTestCA(t)
	ca.issue("gateway", "gateway")
	server := ca.serve(http.NotFoundHandler())
	good := config.TLS{CAFile: ca.path("ca.pem"), CertFile: ca.path("gateway.pem"), KeyFile: ca.path("gateway.key"), ServerName: "engine.test"}
	for name, change := range map[string]func(*config.TLS){
		"":                 func(*config.TLS) {},
		"unknown CA":       func(t *config.TLS) { t.CAFile = "" },
		"another name":     func(t *config.TLS) { t.ServerName = "other.test" },
		"the URL's host":   func(t *config.TLS) { t.ServerName = "" },
		"no certificate":   func(t *config.TLS) { t.CertFile, t.KeyFile = "", "" },
		"TLS not at all":   func(t *config.TLS) { *t = config.TLS{} },
		"another one's CA": func(t *config.TLS) { t.CAFile = ca.path("gateway.pem") },
	} {
		section := good
		change(&section)
		r, err := router.New(config.Config{Models: []config.Model{{Name: "m", Connector: connector.NameKVPlane,
			Prefill: []config.Engine{{Name: "p", URL: server.URL, Control: server.URL + "/control", TLS: section}},
			Decode:  []config.Engine{{Name: "d", URL: "http://127.0.0.1:1"}}}}}, router.Parts{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		e := r.Debug().Engine("p")
		resp, err := e.Upstream().Do(t.Context(), &upstream.Request{Path: "/health"})
		if err == nil {
			resp.Close()
		}
		told, controlErr := e.AskControl()
		if controlErr == nil {
			told.Body.Close()
		}
		if want := name == ""; (err == nil) != want || (controlErr == nil) != want {
			t.Errorf("%s: %v; control routes: %v", name, err, controlErr)
		}
	}
}

// TestUnverifiedEngineRefuses: an engine whose certificate cannot be verified is one that refuses connections. No request waits for
// it to come back.
func TestUnverifiedEngineRefuses(t *testing.T) {
	ca := newTestCA(t)
	s := routertest.NewPool(t, connector.NameNone, 0, 1, nil)
	server := ca.serve(s.Decode[0].Server.Config.Handler)
	s.Config.Models[0].Engines[0].URL = server.URL
	s.Config.Timeouts.Health, s.Config.Timeouts.Queue = 50*time.Millisecond, time.Second
	g := routertest.Start(t, s.Config, router.Parts{})
	routertest.Eventually(t, "a health check has failed", func() bool { return !g.Router.Stats().Engines[0].Up })
	if r := g.Post(routertest.PathCompletions, routertest.PlainBody); r.Status != http.StatusServiceUnavailable || r.Header.Get("X-Pdrouter-Reason") != "no_engine" {
		t.Errorf("status %d, reason %s: %s", r.Status, r.Header.Get("X-Pdrouter-Reason"), r.Body)
	}
}

// TestEngineTLSMistakes: what cannot be meant is refused.
func TestEngineTLSMistakes(t *testing.T) {
	cfg := config.Config{Models: []config.Model{{Name: "m",
		Engines:     []config.Engine{{Name: "a", URL: "http://a", TLS: config.TLS{CAFile: "ca"}}, {Name: "b", URL: "https://b", TLS: config.TLS{CertFile: "cert"}}},
		EnginesFrom: config.Source{DNS: "http://c", TLS: config.TLS{ServerName: "c"}}}}}
	want := "models[0].engines_from.tls is set; want an https URL\nmodels[0].engines[0].tls is set; want an https URL\n" +
		"models[0].engines[1].tls has one of cert_file and key_file; want both or neither"
	if err := cfg.Validate(); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}
