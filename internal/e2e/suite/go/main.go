// Asks a gateway everything of the suite with the openai client, and prints what it saw: go run . URL TAG.
// See suite.py beside this folder, which prints the same.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

const model = "scripted"

var (
	url, tag = os.Args[1], os.Args[2]

	once     = openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithMaxRetries(0))
	patient  = openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithMaxRetries(4))
	stranger = openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithMaxRetries(0), option.WithAPIKey("nobody"))
)

type seen map[string]any

func say(word string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(tag + " " + word)},
	}
}

func withTools(word string) openai.ChatCompletionNewParams {
	p := say(word)
	p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
		Name: "get_weather",
		Parameters: openai.FunctionParameters{
			"type": "object", "properties": seen{"city": seen{"type": "string"}}, "required": []string{"city"},
		},
	})}
	p.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")}
	return p
}

// ask asks and wants an answer.
func ask(c openai.Client, p openai.ChatCompletionNewParams) *openai.ChatCompletion {
	answer, err := c.Chat.Completions.New(context.Background(), p)
	if err != nil {
		log.Fatal(err)
	}
	return answer
}

func counts(u openai.CompletionUsage) []int64 {
	return []int64{u.PromptTokens, u.CompletionTokens, u.PromptTokensDetails.CachedTokens}
}

func object(text string) (v any) {
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		log.Fatalf("%q: %v", text, err)
	}
	return v
}

// follow reads a stream to its end.
func follow(p openai.ChatCompletionNewParams) (sum openai.ChatCompletionAccumulator, chunks int, err error) {
	events := once.Chat.Completions.NewStreaming(context.Background(), p)
	defer events.Close()
	for ; events.Next(); chunks++ {
		sum.AddChunk(events.Current())
	}
	return sum, chunks, events.Err()
}

func stream() seen {
	p := say("stream")
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	sum, chunks, err := follow(p)
	if err != nil {
		log.Fatal(err)
	}
	return seen{"text": sum.Choices[0].Message.Content, "usage": counts(sum.Usage), "several": chunks > 2}
}

func streamedTool() seen {
	sum, _, err := follow(withTools("tools"))
	if err != nil {
		log.Fatal(err)
	}
	return tool(&sum.ChatCompletion)
}

func tool(answer *openai.ChatCompletion) seen {
	call := answer.Choices[0].Message.ToolCalls[0].Function
	return seen{"name": call.Name, "arguments": object(call.Arguments)}
}

func structured() any {
	p := say("structured")
	p.ResponseFormat.OfJSONSchema = &openai.ResponseFormatJSONSchemaParam{
		JSONSchema: openai.ResponseFormatJSONSchemaJSONSchemaParam{
			Name: "weather", Strict: openai.Bool(true),
			Schema: seen{
				"type": "object", "properties": seen{"city": seen{"type": "string"}, "degrees": seen{"type": "integer"}},
				"required": []string{"city", "degrees"}, "additionalProperties": false,
			},
		},
	}
	return object(ask(once, p).Choices[0].Message.Content)
}

func completion() string {
	answer, err := once.Completions.New(context.Background(), openai.CompletionNewParams{
		Model: model, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(tag + " completion")},
	})
	if err != nil {
		log.Fatal(err)
	}
	return answer.Choices[0].Text
}

func models() []string {
	page, err := once.Models.List(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	ids := []string{}
	for _, m := range page.Data {
		ids = append(ids, m.ID)
	}
	return ids
}

func refused(c openai.Client, p openai.ChatCompletionNewParams) any {
	_, err := c.Chat.Completions.New(context.Background(), p)
	var e *openai.Error
	if !errors.As(err, &e) {
		return fmt.Sprintf("no status: %v", err)
	}
	return seen{"status": e.StatusCode, "type": e.Type, "reason": e.Response.Header.Get("X-Pdrouter-Reason")}
}

func timeout() string {
	_, err := once.Chat.Completions.New(context.Background(), say("hang"), option.WithRequestTimeout(time.Second))
	if errors.Is(err, context.DeadlineExceeded) {
		return "timeout"
	}
	return fmt.Sprint(err)
}

func cancel() string {
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	events := once.Chat.Completions.NewStreaming(ctx, say("endless"))
	defer events.Close()
	if !events.Next() {
		log.Fatal(events.Err())
	}
	return events.Current().Choices[0].Delta.Content
}

func cut() seen {
	sum, _, err := follow(say("cut"))
	return seen{"text": sum.Choices[0].Message.Content, "error": err != nil}
}

func main() {
	first := ask(once, say("chat"))
	nothing := say("chat")
	nothing.Model = "nothing"
	b, err := json.Marshal(seen{
		"chat":         seen{"text": first.Choices[0].Message.Content, "finish": first.Choices[0].FinishReason},
		"completion":   completion(),
		"stream":       stream(),
		"tools":        tool(ask(once, withTools("tools"))),
		"tools_stream": streamedTool(),
		"structured":   structured(),
		"usage":        counts(ask(once, say("chat")).Usage),
		"models":       models(),
		"bad_request":  refused(once, say("reject")),
		"not_found":    refused(once, nothing),
		"unauthorized": refused(stranger, say("chat")),
		"busy":         refused(once, say("busy")),
		"retried":      ask(patient, say("soon")).Choices[0].Message.Content,
		"timeout":      timeout(),
		"cancel":       cancel(),
		"cut":          cut(),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(b))
}
