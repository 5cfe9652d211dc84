package adminapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Client speaks to a gateway's listener for administrators, or to the one for operations. It follows no redirects, as it bears a token.
type Client struct {
	base, tokenFile string
	http            *http.Client
}

// NewClient returns a client of the gateway with this base URL of a listener. The token is read from its file at each request; "" sends none.
// caFile has whom the gateway's certificate is signed by; "" trusts whom this machine trusts.
func NewClient(gateway, tokenFile, caFile string) (*Client, error) {
	c := &Client{strings.TrimSuffix(gateway, "/"), tokenFile, &http.Client{
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if caFile == "" {
		return c, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", caFile)
	}
	c.http.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}
	return c, nil
}

// String is the base URL.
func (c *Client) String() string { return c.base }

// List returns every engine.
func (c *Client) List(ctx context.Context) (Listing, error) {
	var all Listing
	return all, named(c.do(ctx, http.MethodGet, "/admin/v1/engines", nil, &all))
}

// Add adds an engine to a list of a model: prefill, decode or engines. The entry has the keys of the configuration.
func (c *Client) Add(ctx context.Context, model, list string, entry map[string]string) (Engine, error) {
	return c.change(ctx, http.MethodPost, "/models/"+url.PathEscape(model)+"/"+url.PathEscape(list), entry)
}

// Drain gives an engine no more requests.
func (c *Client) Drain(ctx context.Context, name string) (Engine, error) {
	return c.change(ctx, http.MethodPost, "/engines/"+url.PathEscape(name)+"/drain", nil)
}

// Undrain gives an engine requests again.
func (c *Client) Undrain(ctx context.Context, name string) (Engine, error) {
	return c.change(ctx, http.MethodPost, "/engines/"+url.PathEscape(name)+"/undrain", nil)
}

// Remove drains an engine and then forgets it. It waits for the engine's requests, for the time drain at most if that is not ""; with force
// it does not wait.
func (c *Client) Remove(ctx context.Context, name, drain string, force bool) (Engine, error) {
	query := url.Values{}
	if force {
		query.Set("force", "true")
	} else if drain != "" {
		query.Set("drain", drain)
	}
	return c.change(ctx, http.MethodDelete, "/engines/"+url.PathEscape(name)+"?"+query.Encode(), nil)
}

// change asks for a change, and returns what became of the engine.
func (c *Client) change(ctx context.Context, method, path string, body any) (Engine, error) {
	var e Engine
	return e, named(c.do(ctx, method, "/admin/v1"+path, body, &e))
}

// named says what an error is of.
func named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("engines: %w", err)
}

// Get reads the JSON that a route of the listener answers with.
func (c *Client) Get(ctx context.Context, path string, to any) error {
	return c.do(ctx, http.MethodGet, path, nil, to)
}

// do sends a request and reads the answer into to. A refusal is an error with what the gateway says.
func (c *Client) do(ctx context.Context, method, path string, body, to any) error {
	var sent bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&sent).Encode(body); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, &sent)
	if err != nil {
		return err
	}
	if c.tokenFile != "" {
		token, err := os.ReadFile(c.tokenFile)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 && resp.StatusCode < 400 {
		return fmt.Errorf("%s answered %d: a redirect, which is not followed; name the address of the listener itself", c.base, resp.StatusCode)
	}
	if resp.StatusCode >= 400 {
		var refused struct {
			Error struct{ Message string }
		}
		if json.Unmarshal(b, &refused) != nil || refused.Error.Message == "" {
			refused.Error.Message = http.StatusText(resp.StatusCode)
		}
		return fmt.Errorf("%d: %s", resp.StatusCode, refused.Error.Message)
	}
	if err := json.Unmarshal(b, to); err != nil {
		return fmt.Errorf("the answer is no gateway's: %w", err)
	}
	return nil
}
