// Package client is the engines' side of the metadata routes: it publishes the records of an engine's ranks, reads those of its peers,
// and follows what changes about them. It does not serve and keeps nothing beyond this process. Engines, libpdkv.so and the command
// open it.
//
// Read client.go, watch.go with events.go, publisher.go, directory.go, follow.go (how a Directory keeps its copy true), and
// tokenfile.go.
package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"pdrouter/metadata"
)

// Config says where a gateway's agents' listener is.
type Config struct {
	URL     string        `yaml:"url"`     // base URL, http or https
	Timeout time.Duration `yaml:"timeout"` // of one exchange; default 5s
	Retry   time.Duration `yaml:"retry"`   // Directory: first pause between tries, doubled up to 1s; default 20ms
	Answer  int64         `yaml:"answer"`  // bytes of an answer at most; default 32 MiB

	Watch WatchConfig `yaml:"watch"` // how changes are followed
}

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.Retry = cmp.Or(c.Retry, 20*time.Millisecond)
	c.Answer = cmp.Or(c.Answer, 32<<20)
	c.Watch = c.Watch.withDefaults()
	return c
}

// Validate reports every value that makes no sense. Zero means the default.
func (c Config) Validate() error {
	var errs []error
	if u, err := url.Parse(c.URL); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		errs = append(errs, fmt.Errorf("url is %q; want http://host:port or https://host:port", c.URL))
	}
	if c.Timeout < 0 || c.Retry < 0 || c.Answer < 0 {
		errs = append(errs, fmt.Errorf("timeout, retry and answer are %v, %v and %d; want at least 0", c.Timeout, c.Retry, c.Answer))
	}
	return errors.Join(append(errs, c.Watch.validate())...)
}

// Client speaks to a gateway's metadata routes. It is safe for concurrent use.
type Client struct {
	cfg    Config
	base   string
	http   *http.Client
	token  func() (string, error)
	trust  metadata.Voucher
	signer crypto.Signer // of what the client writes; nil: the gateway signs
}

// New returns a client that sends the bearer token that token returns at each request (see TokenFile). trust
// checks the signature of each record that is read; nil leaves trust to the connection. transport carries the
// exchanges; nil is a plain http.Transport.
func New(cfg Config, token func() (string, error), trust metadata.Voucher, transport http.RoundTripper) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("metadata: client: %w", err)
	}
	if token == nil {
		return nil, errors.New("metadata: client: no token")
	}
	if transport == nil {
		transport = &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: 90 * time.Second}
	}
	cfg = cfg.withDefaults()
	return &Client{
		cfg: cfg, base: strings.TrimSuffix(cfg.URL, "/") + "/metadata/v1/engines", token: token, trust: trust,
		http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// Put publishes a record. It returns ErrStale if the gateway knows something newer, as a *Superseded if that is a newer
// generation.
func (c *Client) Put(ctx context.Context, rec metadata.Record) error {
	if c.signer != nil {
		var err error
		if rec, err = rec.SignAs(c.signer); err != nil {
			return err
		}
	}
	body, err := metadata.Marshal(rec)
	if err != nil {
		return err
	}
	_, _, err = c.do(ctx, http.MethodPut, c.rankURL(rec.Engine, rec.Rank), body, nil)
	var newer *metadata.Superseded
	if errors.As(err, &newer) {
		newer.Generation = rec.Generation
	}
	return named(err, rec.Engine, rec.Rank)
}

// SignWith has every record that is put, and every withdrawal, signed with the Ed25519 key to which the client's token
// is bound: a gateway takes neither from such a token alone. It must be called before the first Put.
func (c *Client) SignWith(key crypto.Signer) { c.signer = key }

// Delete withdraws a record. It returns ErrNotFound or ErrStale if there is nothing to withdraw.
func (c *Client) Delete(ctx context.Context, inc metadata.Incarnation, rank metadata.Rank) error {
	var header http.Header
	if c.signer != nil {
		proof, err := c.signer.Sign(nil, metadata.Withdrawal(inc, rank), crypto.Hash(0))
		if err != nil {
			return named(err, inc.Engine, rank)
		}
		header = http.Header{}
		header.Set(metadata.ProofHeader, base64.RawURLEncoding.EncodeToString(proof))
	}
	_, _, err := c.do(ctx, http.MethodDelete, c.rankURL(inc.Engine, rank)+"?generation="+strconv.FormatUint(inc.Generation, 10), nil, header)
	return named(err, inc.Engine, rank)
}

// Engine returns the records of the engine's newest generation that the client may read, in the order of their ranks, or
// ErrNotFound: of all ranks, or, for a token that names ranks, of those that map onto these.
func (c *Client) Engine(ctx context.Context, engine string) ([]metadata.Record, error) {
	recs, _, err := c.engine(ctx, engine)
	return recs, err
}

// engine is Engine. some reports that the engine has published more ranks than those.
func (c *Client) engine(ctx context.Context, engine string) (recs []metadata.Record, some bool, err error) {
	b, header, err := c.do(ctx, http.MethodGet, c.base+"/"+url.PathEscape(engine), nil, nil)
	if err != nil {
		return nil, false, fmt.Errorf("metadata: engine %s: %w", engine, err)
	}
	some = header.Get(metadata.PublishedHeader) != ""
	var raws []msgpack.RawMessage
	if err := decode(b, &raws); err != nil {
		return nil, false, fmt.Errorf("metadata: engine %s: %w", engine, err)
	}
	recs = make([]metadata.Record, len(raws))
	for i, raw := range raws {
		if recs[i], err = c.record(raw, engine); err != nil {
			return nil, false, err
		}
	}
	return recs, some, nil
}

// Engines returns the engines that the client may read.
func (c *Client) Engines(ctx context.Context) ([]metadata.Listed, error) {
	b, _, err := c.do(ctx, http.MethodGet, c.base, nil, nil)
	var out []metadata.Listed
	if err == nil {
		err = decode(b, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("metadata: engines: %w", err)
	}
	return out, nil
}

// record decodes a record of the engine, and checks its signature if the client has a Voucher.
func (c *Client) record(b []byte, engine string) (metadata.Record, error) {
	var rec metadata.Record
	var err error
	if c.trust != nil {
		rec, err = metadata.UnmarshalSigned(b, c.trust)
	} else {
		rec, err = metadata.Unmarshal(b)
	}
	if err == nil && rec.Engine != engine {
		err = fmt.Errorf("metadata: engine %s: the answer is about engine %s", engine, rec.Engine)
	}
	return rec, err
}

func (c *Client) rankURL(engine string, rank metadata.Rank) string {
	return c.base + "/" + url.PathEscape(engine) + "/ranks/" + rank.String()
}

// do sends one request and returns the body and the header of its answer if that is 2xx.
func (c *Client) do(ctx context.Context, method, target string, body []byte, header http.Header) ([]byte, http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	resp, err := c.send(ctx, method, target, metadata.ContentType, body, header)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, c.cfg.Answer+1))
	if err != nil {
		return nil, nil, err
	}
	if int64(len(b)) > c.cfg.Answer {
		return nil, nil, fmt.Errorf("answer has more than %d bytes", c.cfg.Answer)
	}
	if known, err := strconv.ParseUint(resp.Header.Get(metadata.GenerationHeader), 10, 64); err == nil && resp.StatusCode == http.StatusConflict {
		return nil, nil, &metadata.Superseded{Known: known}
	}
	if resp.StatusCode/100 != 2 {
		return nil, nil, answerError(resp.StatusCode, b)
	}
	return b, resp.Header, nil
}

// send sends one request with the client's token. The caller closes the body of the answer.
func (c *Client) send(ctx context.Context, method, target, accept string, body []byte, header http.Header) (*http.Response, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", accept)
	if method == http.MethodPut {
		req.Header.Set("Content-Type", metadata.ContentType)
	}
	return c.http.Do(req)
}

// answerError returns the error that an answer stands for.
func answerError(status int, body []byte) error {
	switch status {
	case http.StatusNotFound:
		return metadata.ErrNotFound
	case http.StatusConflict:
		return metadata.ErrStale
	}
	var a struct {
		Error struct{ Message string }
	}
	if json.Unmarshal(body, &a) != nil || a.Error.Message == "" {
		a.Error.Message = http.StatusText(status)
	}
	return &StatusError{Status: status, Message: a.Error.Message}
}

// StatusError is an answer that is neither success, ErrNotFound nor ErrStale.
type StatusError struct {
	Status  int
	Message string
}

// Error returns status and message.
func (e *StatusError) Error() string { return fmt.Sprintf("status %d: %s", e.Status, e.Message) }

func named(err error, engine string, rank metadata.Rank) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("metadata: engine %s rank %v: %w", engine, rank, err)
}

// decode reads msgpack from anywhere.
func decode(b []byte, v any) error {
	if err := metadata.CheckMsgpack(b); err != nil {
		return err
	}
	return msgpack.Unmarshal(b, v)
}
