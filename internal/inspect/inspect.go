// Package inspect asks engines what they are, and compares that with what a configuration says of them.
//
// Asker.Ask learns one engine's facts over HTTP: what it serves, which KV connector it runs, where its side channel is. Compare is pure: it
// names what does not fit. Both are called before there is traffic, and nothing here runs while requests are served: Fleet.Model makes the
// configuration of pdrouter serve --prefill URL --decode URL, and Probe is what pdrouter validate --probe reports.
package inspect

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"pdrouter/metadata"
	"pdrouter/metadata/vllm"
	"pdrouter/router/config"
)

// Kind is the serving engine's software.
type Kind string

// The kinds that are told apart. Other is every engine with OpenAI's routes that is neither.
const (
	VLLM   Kind = "vLLM"
	SGLang Kind = "SGLang"
	Other  Kind = "an OpenAI-compatible server"
)

// Facts are what one engine says about itself.
type Facts struct {
	Models      []Model // that it serves, adapters left out
	Kind        Kind
	Version     string   // "" if it does not say
	HandOff     *HandOff // vLLM: how it hands KV off; nil if it does not
	HandOffErr  error    // vLLM: why that could not be asked
	Side        *metadata.Record
	SideErr     error  // why the side channel did not answer
	Disaggr     string // SGLang: prefill, decode or null
	Bootstrap   int    // SGLang: the port of the bootstrap server, 0 if it does not say
	TokenDetail bool   // usage says how many tokens of the prompt were cached
}

// Model is one served model.
type Model struct {
	Name   string
	MaxLen int // tokens of context; 0 if the engine does not say
}

// HandOff is what a vLLM engine answers to a request whose KV another engine will take.
type HandOff struct {
	EngineID   string
	Host       string // of the side channel, as the engine names it to its peers
	Port       int
	TP, PP     int    // ranks
	Mode       string // push or pull; "" of engines that do not say
	PlainNames bool   // it keeps the request ids that it is sent
}

// askFor bounds one question. The first request to an engine may take long: it compiles, and engines without GPUs share processors.
const askFor = 60 * time.Second

// sideTries is how often a side channel is asked. Each try has its own limit of 5 s, and an engine that computes may answer late.
const sideTries = 4

// maxAnswer bounds an answer in bytes.
const maxAnswer = 4 << 20

// Asker asks one engine.
type Asker struct {
	URL    string // base URL, without /v1
	Token  string // bearer token; "" for none
	Client *http.Client
}

// StatusError is an answer that is not 200.
type StatusError struct {
	Path   string
	Status int
	Text   string // the beginning of the body
}

// Error names path, status and text.
func (e *StatusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("GET %s answered %d %s", e.Path, e.Status, e.Text))
}

// AskEngine asks the engine of a configuration's entry, with its credentials and TLS.
func AskEngine(ctx context.Context, files *config.Secrets, e config.Engine) (Facts, error) {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }} // it may bear a token
	transport := &http.Transport{}
	if strings.HasPrefix(e.URL, "https://") {
		cfg, err := e.TLS.Load(files)
		if err != nil {
			return Facts{}, err
		}
		transport.TLSClientConfig = cfg
	}
	client.Transport = transport
	defer transport.CloseIdleConnections()
	token := ""
	if e.BearerTokenFile != "" {
		var err error
		if token, err = files.Read("bearer_token_file", e.BearerTokenFile); err != nil {
			return Facts{}, err
		}
	}
	return Asker{URL: e.URL, Token: token, Client: client}.Ask(ctx)
}

// Ask learns the facts. It fails if the engine does not say what it serves. On a vLLM engine it runs one request of two tokens, whose
// KV block the engine keeps until its lease ends (30 s by default).
func (a Asker) Ask(ctx context.Context) (Facts, error) {
	var f Facts
	var models struct {
		Data []struct {
			ID     string  `json:"id"`
			Owner  string  `json:"owned_by"`
			Parent *string `json:"parent"`
			MaxLen int     `json:"max_model_len"`
		} `json:"data"`
	}
	if err := a.get(ctx, "/v1/models", &models); err != nil {
		return f, err
	}
	f.Kind = Other
	for _, m := range models.Data {
		switch m.Owner {
		case "vllm":
			f.Kind = VLLM
		case "sglang":
			f.Kind = SGLang
		}
		if m.Parent == nil {
			f.Models = append(f.Models, Model{m.ID, m.MaxLen})
		}
	}
	if len(f.Models) == 0 {
		return f, errors.New("GET /v1/models names no model")
	}
	switch f.Kind {
	case VLLM:
		var v struct{ Version string }
		if a.get(ctx, "/version", &v) == nil {
			f.Version = v.Version
		}
		f.HandOff, f.TokenDetail, f.HandOffErr = a.askHandOff(ctx, f.Models[0].Name)
		if h := f.HandOff; h != nil {
			f.Side, f.SideErr = askSide(ctx, h)
		}
	case SGLang:
		var s struct {
			Version   string `json:"version"`
			Mode      string `json:"disaggregation_mode"`
			Bootstrap int    `json:"disaggregation_bootstrap_port"`
		}
		if err := a.get(ctx, "/get_server_info", &s); err == nil {
			f.Version, f.Disaggr, f.Bootstrap = s.Version, s.Mode, s.Bootstrap
		}
	}
	return f, nil
}

// askHandOff sends the request that a prefill engine gets. An engine without a KV connector answers it without kv_transfer_params.
func (a Asker) askHandOff(ctx context.Context, model string) (h *HandOff, detail bool, err error) {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it never fails
	name := hex.EncodeToString(id)
	body, err := json.Marshal(map[string]any{
		"model": model, "prompt": "a b", "max_tokens": 1, "stream": false,
		"kv_transfer_params": map[string]any{
			"do_remote_decode": true, "do_remote_prefill": false, "transfer_id": name,
			"remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil,
		},
	})
	if err != nil {
		return nil, false, err
	}
	var answer struct {
		Usage struct {
			Details *struct{} `json:"prompt_tokens_details"`
		} `json:"usage"`
		KV *struct {
			EngineID string `json:"remote_engine_id"`
			Host     string `json:"remote_host"`
			Port     int    `json:"remote_port"`
			TP       int    `json:"tp_size"`
			PP       int    `json:"pp_size"`
			Mode     string `json:"transfer_mode"`
			Request  string `json:"remote_request_id"`
		} `json:"kv_transfer_params"`
	}
	if err := a.do(ctx, http.MethodPost, "/v1/completions", body, name, &answer); err != nil {
		return nil, false, err
	}
	detail = answer.Usage.Details != nil
	kv := answer.KV
	if kv == nil || kv.EngineID == "" {
		return nil, detail, nil
	}
	return &HandOff{
		EngineID: kv.EngineID, Host: kv.Host, Port: kv.Port, TP: max(kv.TP, 1), PP: max(kv.PP, 1), Mode: kv.Mode,
		PlainNames: kv.Request != "" && strings.HasSuffix(kv.Request, name+"-0"),
	}, detail, nil
}

// askSide asks the engine's first rank for its metadata, as the engine's peers do.
func askSide(ctx context.Context, h *HandOff) (*metadata.Record, error) {
	e, err := vllm.Unknown(h.Host, h.Port)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		rec, err := e.First(ctx)
		if err == nil {
			return &rec, nil
		}
		if try == sideTries || ctx.Err() != nil {
			return nil, err
		}
	}
}

func (a Asker) get(ctx context.Context, path string, to any) error {
	return a.do(ctx, http.MethodGet, path, nil, "", to)
}

func (a Asker) do(ctx context.Context, method, path string, body []byte, id string, to any) error {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(a.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if a.Token != "" {
		req.Header.Set("Authorization", "Bearer "+a.Token)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Request-Id", id)
	}
	resp, err := a.Client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the caller names the engine
		}
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		text := strings.ToValidUTF8(string(b[:min(len(b), 200)]), "?")
		if len(text) > 0 {
			text = strconv.Quote(text)
		}
		return &StatusError{path, resp.StatusCode, text}
	}
	if err := json.Unmarshal(b, to); err != nil {
		return fmt.Errorf("%s is not answered with the JSON of an OpenAI-compatible server: %w", path, err)
	}
	return nil
}
