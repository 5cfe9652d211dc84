package openai

import (
	"strings"
	"testing"

	"pdrouter/router/reason"
)

// TestFault28Media names media at hosts of every kind, without anybody being asked for an address.
func TestFault28Media(t *testing.T) {
	tests := []struct {
		url     string
		refused bool
	}{
		{"https://example.com/a.png", false},
		{"https://cdn.example.com:8443/a.png?x=http://127.0.0.1/", false},
		{"HTTPS://EXAMPLE.COM/100%", false},
		{"http://8.8.8.8/a.png", false},
		{"http://[2606:4700::1111]/a.png", false},
		{"data:image/png;base64,AAAA", false},
		{"iVBORw0KGgo=", false},
		{"file-abc", false},
		{"http://127.0.0.1/", true},
		{"http://169.254.169.254/latest/meta-data/", true},
		{"http://10.0.0.7:8000/", true},
		{"http://172.16.3.4/", true},
		{"http://192.168.0.1/", true},
		{"http://100.64.0.1/", true},
		{"http://0.0.0.0/", true},
		{"http://2130706433/", true},
		{"http://0x7f000001/", true},
		{"http://0177.0.0.1/", true},
		{"http://127.1/", true},
		{"http://127.0.0.1./", true},
		{"http://1.2.3.999/", true},
		{"http://[::1]/", true},
		{"http://[::ffff:10.0.0.1]/", true},
		{"http://[64:ff9b::7f00:1]/", true},
		{"http://[2002:7f00:1::]/", true},
		{"http://[fd00::1]/", true},
		{"http://[fe80::1%25eth0]/", true},
		{"http://localhost/", true},
		{"http://LOCALHOST./", true},
		{"http://metadata/", true},
		{"http://metadata.google.internal/", true},
		{"http://metadata.goog/", true}, // the names and addresses of clouds' metadata services, beside 169.254.169.254
		{"http://METADATA.GOOG./computeMetadata/v1/", true},
		{"http://metadata.tencentyun.com/", true},
		{"http://api.metadata.cloud.ibm.com/", true},
		{"http://168.63.129.16/", true},
		{"http://0xa83f8110/", true},
		{"http://[::ffff:168.63.129.16]/", true},
		{"http://100.100.100.200/", true},
		{"http://192.0.0.192/", true},
		{"http://[fd00:ec2::254]/", true},
		{"http://[fd20:ce::254]/", true},
		{"http://168.63.129.17/", false},
		{"http://my-metadata.goog/", false},
		{"http://vllm.default.svc/", true},
		{"http://printer.local/", true},
		{"http://router.home.arpa/", true},
		{" http://127.0.0.1/", true},
		{"http:127.0.0.1/", true},
		{"http:/127.0.0.1/", true},
		{`http://example.com\@127.0.0.1/`, true},
		{"http://example.com@127.0.0.1/", true},
		{"http://１２７.0.0.1/", true},
		{"http:///etc/passwd", true},
		{"file:///etc/passwd", true},
		{"FILE:/etc/passwd", true},
		{"http://" + strings.Repeat("a.com.", 700) + "a@127.0.0.1/x", true},
		{"http://example.com" + strings.Repeat("a", 5000) + "@127.0.0.1/x", true},
		{"https://example.com/" + strings.Repeat("a", 5000), false},
		{"data:text/plain," + strings.Repeat("http://127.0.0.1/\n", 500), false},
		{strings.Repeat("iVBORw0KGgo\n", 500), false},
		{"//uQ" + strings.Repeat("xAAA", 2000), false},
		{"//127.0.0.1/", true},
		{"//metadata/", true},
		{strings.Repeat(" ", 5000) + "http://127.0.0.1/", true},
		{"\x01http://127.0.0.1/", true},
		{"ht\ttp://127.0.0.1/", true},
		{"http:\n//127.0.0.1/", true},
		{"fi\nle:/etc/passwd", true},
		{"https://example.com/a\r\n.png", true},
		{"\u00a0http://127.0.0.1/", true},
		{"see http://127.0.0.1/", false},
		{"http://localhost.localdomain/", true},
		{"http://[64:ff9b:1::808:808]/", true},
		{"http://[64:ff9b::808:808]/", false},
		{"http://[2001:0:7f00:1::]/", true},
		{"http://[2001:4860:4860::8888]/", false},
		{"http://[::ffff:0:7f00:1]/", true},
		{"http://[2606:4700::5efe:7f00:1]/", true},
		{"http://[2606:4700::200:5efe:a00:1]/", true},
		{"http://[2606:4700::5efe:808:808]/", false},
	}
	rules := &MediaRules{}
	for _, tt := range tests {
		if why := rules.refuses([]byte(tt.url)); (why != "") != tt.refused {
			t.Errorf("%.80q: %q; want refused %v", tt.url, why, tt.refused)
		}
	}
	only := &MediaRules{Hosts: []string{"example.com", ".example.org", "10.0.0.7"}}
	for url, refused := range map[string]bool{
		"https://example.com/": false, "https://a.example.com/": true, "https://a.example.org/": false, "https://example.org/": true,
		"http://10.0.0.7/": false, "http://10.0.0.8/": true, "https://notexample.com/": true, "data:,": false, "file:///a": true,
	} {
		if why := only.refuses([]byte(url)); (why != "") != refused {
			t.Errorf("%q: %q; want refused %v", url, why, refused)
		}
	}
}

// TestFault28MediaInBodies finds the URLs at each place where a shape has them, and nowhere else.
func TestFault28MediaInBodies(t *testing.T) {
	const bad = `http://10.0.0.7/x`
	tests := []struct {
		name    string
		shape   Shape
		body    string
		refused bool
	}{
		{"chat", ShapeChat, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"BAD"}}]}]}`, true},
		{"chat, bare", ShapeChat, `{"messages":[{"content":[{"image_url":"BAD"}]}]}`, true},
		{"chat, escaped", ShapeChat, `{"messages":[{"content":[{"video_url":{"u\u0072l":"http:\/\/10.0.0.7\/x"}}]}]}`, true},
		{"chat, long", ShapeChat, `{"messages":[{"content":[{"image_url":"http://` + strings.Repeat("a.com.", 700) + `a@127.0.0.1/x"}]}]}`, true},
		{"chat, audio", ShapeChat, `{"messages":[{"content":[{"audio_url":{"url":"BAD"}}]}]}`, true},
		{"chat, text", ShapeChat, `{"messages":[{"content":"BAD"},{"content":[{"type":"text","text":"BAD"}]}]}`, false},
		{"chat, tool call", ShapeChat, `{"messages":[{"tool_calls":[{"function":{"arguments":"{\"url\":\"BAD\"}"}}]}],"tools":[{"url":"BAD"}]}`, false},
		{"responses", ShapeResponses, `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"BAD"}]}]}`, true},
		{"responses, file", ShapeResponses, `{"input":[{"content":[{"type":"input_file","file_url":"BAD"}]}]}`, true},
		{"responses, tool output", ShapeResponses, `{"input":[{"type":"function_call_output","output":[{"type":"input_image","image_url":"BAD"}]}]}`, true},
		{"responses, text", ShapeResponses, `{"input":"BAD"}`, false},
		{"messages", ShapeMessages, `{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"BAD"}}]}]}`, true},
		{"messages, tool result", ShapeMessages, `{"messages":[{"content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"BAD"}}]}]}]}`, true},
		{"messages, tool use", ShapeMessages, `{"messages":[{"content":[{"type":"tool_use","input":{"url":"BAD"}}]}]}`, false},
		{"generate", ShapeGenerate, `{"token_ids":[1],"sampling_params":{},"content_parts":[{"type":"image_url","image_url":{"url":"BAD"}}]}`, true},
		{"pooling", ShapePass, `{"messages":[{"content":[{"type":"image_url","image_url":{"url":"BAD"}}]}]}`, true},
		{"batch", ShapeBatch, `{"messages":[[{"content":"a"}],[{"content":[{"type":"video_url","video_url":{"url":"BAD"}}]}]]}`, true},
		{"render", ShapePass, `{"system":[{"type":"image","source":{"type":"url","url":"BAD"}}],"messages":[]}`, true},
		{"rerank", ShapePass, `{"query":"a","documents":[{"content":[{"type":"image_url","image_url":{"url":"BAD"}}]}]}`, true},
		{"score", ShapePass, `{"data_1":{"content":[{"image_url":"BAD"}]},"data_2":"a"}`, true},
		{"embed", ShapePass, `{"inputs":[{"content":[{"type":"image_url","image_url":{"url":"BAD"}}]}]}`, true},
		{"embed, images", ShapePass, `{"images":["data:image/png;base64,AA","BAD"]}`, true},
		{"pooling, data", ShapePass, `{"data":{"data":"BAD","data_format":"url"}}`, true},
		{"embeddings, text", ShapePass, `{"input":["BAD","b"],"text_1":"BAD"}`, false},
		{"embeddings, tokens", ShapePass, `{"input":[[1,2],[3]]}`, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, herr := ParseBody(tt.shape, []byte(strings.ReplaceAll(tt.body, "BAD", bad)), Limits{Media: &MediaRules{}})
			switch {
			case tt.refused && herr == nil:
				t.Error("accepted")
			case !tt.refused && herr != nil:
				t.Error(herr)
			case tt.refused && (herr.Status != 400 || herr.Reason != reason.MediaHost):
				t.Errorf("got %d %s", herr.Status, herr.Reason)
			}
		})
	}
}
