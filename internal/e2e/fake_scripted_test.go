package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeScripted is an engine that answers by what the last message says: "TAG chat", "TAG tools" and so on. A model would
// not call a tool, be busy or hang when it is told.
type fakeScripted struct {
	*httptest.Server

	mu    sync.Mutex
	asked map[string]int // by message
	left  map[string]int // requests whose client went before the answer was whole
}

// scriptedText is what it mostly says, a word in each event of a stream.
const scriptedText = "one two three"

const scriptedUsage = `{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14,"prompt_tokens_details":{"cached_tokens":4}}`

func newFakeScripted(t *testing.T) *fakeScripted {
	t.Helper()
	f := &fakeScripted{asked: map[string]int{}, left: map[string]int{}}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() { f.CloseClientConnections(); f.Close() })
	return f
}

// scriptedBody is what it reads of a request. Tools and format are answered only if they came as they were sent.
type scriptedBody struct {
	Messages      []struct{ Content string }
	Prompt        string
	Stream        bool
	StreamOptions struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
	Tools []struct {
		Function struct {
			Name       string
			Parameters struct{ Required []string }
		}
	}
	ToolChoice string `json:"tool_choice"`
	Format     struct {
		Type   string
		Schema struct {
			Strict bool
			Schema struct{ Required []string }
		} `json:"json_schema"`
	} `json:"response_format"`
}

func (f *fakeScripted) serve(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/v1/") || r.Method != http.MethodPost {
		return // its health
	}
	var b scriptedBody
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	said := b.Prompt
	if n := len(b.Messages); n > 0 {
		said = b.Messages[n-1].Content
	}
	f.mu.Lock()
	f.asked[said]++
	times := f.asked[said]
	f.mu.Unlock()
	_, word, _ := strings.Cut(said, " ")
	w.Header().Set("Content-Type", "application/json")
	switch {
	case word == "reject":
		scriptedError(w, http.StatusBadRequest, "BadRequestError")
	case word == "busy", word == "soon" && times == 1:
		scriptedError(w, http.StatusServiceUnavailable, "ServiceUnavailableError")
	case word == "hang":
		<-r.Context().Done()
		f.gone(said)
	case word == "completion":
		fmt.Fprintf(w, `{"id":"x","object":"text_completion","created":1,"model":"scripted","choices":[{"index":0,"text":%q,"finish_reason":"stop","logprobs":null}],"usage":%s}`,
			scriptedText, scriptedUsage)
	case b.Stream:
		f.stream(w, r, &b, said, word)
	default:
		message := fmt.Sprintf(`{"role":"assistant","content":%q}`, scriptedContent(&b, word))
		if called(&b, word) {
			message = `{"role":"assistant","content":null,"tool_calls":[{"id":"call-1","type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Bern\"}"}}]}`
		}
		fmt.Fprintf(w, `{"id":"x","object":"chat.completion","created":1,"model":"scripted","choices":[{"index":0,"message":%s,"finish_reason":"stop","logprobs":null}],"usage":%s}`,
			message, scriptedUsage)
	}
}

// called reports whether a tool is to be called, as the request came.
func called(b *scriptedBody, word string) bool {
	return word == "tools" && b.ToolChoice == "required" && len(b.Tools) == 1 && b.Tools[0].Function.Name == "get_weather" &&
		len(b.Tools[0].Function.Parameters.Required) == 1
}

func scriptedContent(b *scriptedBody, word string) string {
	if word == "structured" && b.Format.Type == "json_schema" && b.Format.Schema.Strict && len(b.Format.Schema.Schema.Required) == 2 {
		return `{"city": "Bern", "degrees": 7}`
	}
	return scriptedText
}

// stream sends events a while apart, so that none waits for the next.
func (f *fakeScripted) stream(w http.ResponseWriter, r *http.Request, b *scriptedBody, said, word string) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(choices, usage string) {
		fmt.Fprintf(w, `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"scripted","choices":[%s]%s}`+"\n\n", choices, usage)
		_ = http.NewResponseController(w).Flush()
	}
	delta := func(format string, args ...any) string {
		return `{"index":0,"delta":` + fmt.Sprintf(format, args...) + `,"finish_reason":null}`
	}
	deltas := []string{delta(`{"role":"assistant","content":"one"}`), delta(`{"content":" two"}`), delta(`{"content":" three"}`)}
	if called(b, word) {
		deltas = []string{
			delta(`{"role":"assistant","tool_calls":[{"index":0,"id":"call-1","type":"function","function":{"name":"get_weather","arguments":""}}]}`),
			delta(`{"tool_calls":[{"index":0,"function":{"arguments":%q}}]}`, `{"city":`),
			delta(`{"tool_calls":[{"index":0,"function":{"arguments":%q}}]}`, ` "Bern"}`),
		}
	}
	for i := 0; i < len(deltas) || word == "endless"; i++ {
		if word == "cut" && i == 2 {
			panic(http.ErrAbortHandler)
		}
		send(deltas[i%len(deltas)], "")
		select {
		case <-r.Context().Done():
			f.gone(said)
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	send(`{"index":0,"delta":{},"finish_reason":"stop"}`, "")
	if b.StreamOptions.Usage {
		send("", `,"usage":`+scriptedUsage)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func scriptedError(w http.ResponseWriter, status int, kind string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"message":"as it was told","type":%q,"param":null,"code":%d}}`, kind, status)
}

func (f *fakeScripted) gone(said string) {
	f.mu.Lock()
	f.left[said]++
	f.mu.Unlock()
}

// count returns how often something was asked, and how often the client went before the answer was whole.
func (f *fakeScripted) count(said string) (asked, left int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[said], f.left[said]
}
