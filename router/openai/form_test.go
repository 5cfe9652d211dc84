package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"slices"
	"strings"
	"testing"

	"pdrouter/router/openai/answer"
)

// TestFormRefused reads forms that two readers could read differently.
func TestFormRefused(t *testing.T) {
	const model = "Content-Disposition: form-data; name=\"model\"\r\n\r\ntiny"
	for name, body := range map[string]string{
		"empty":               "",
		"no end":              "--b\r\n" + model,
		"no part":             "--b--\r\n",
		"preamble":            "x\r\n--b\r\n" + model + "\r\n--b--\r\n",
		"epilogue":            "--b\r\n" + model + "\r\n--b--\r\nx",
		"bare LF":             strings.ReplaceAll("--b\r\n"+model+"\r\n--b--\r\n", "\r\n", "\n"),
		"LF in the head":      "--b\r\nContent-Disposition: form-data;\n name=\"model\"\r\n\r\ntiny\r\n--b--\r\n",
		"padded boundary":     "--b \r\n" + model + "\r\n--b--\r\n",
		"longer boundary":     "--b\r\n" + model + "\r\n--bc\r\n--b--\r\n",
		"boundary at once":    "--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n--b\r\n" + model + "\r\n--b--\r\n",
		"no name":             "--b\r\nContent-Disposition: form-data\r\n\r\ntiny\r\n--b--\r\n",
		"two names":           "--b\r\nContent-Disposition: form-data; name=\"model\"; name=\"x\"\r\n\r\ntiny\r\n--b--\r\n",
		"name of another set": "--b\r\nContent-Disposition: form-data; name*=utf-8''model\r\n\r\ntiny\r\n--b--\r\n",
		"escaped name":        "--b\r\nContent-Disposition: form-data; name=\"mo\\del\\\"\"\r\n\r\ntiny\r\n--b--\r\n",
		"two dispositions":    "--b\r\nContent-Disposition: form-data; name=\"x\"\r\n" + model + "\r\n--b--\r\n",
		"encoded":             "--b\r\nContent-Transfer-Encoding: base64\r\n" + model + "\r\n--b--\r\n",
		"model is a file":     "--b\r\nContent-Disposition: form-data; name=\"model\"; filename=\"a\"\r\n\r\ntiny\r\n--b--\r\n",
	} {
		if b, e := ParseForm("multipart/form-data; boundary=b", []byte(body), Limits{}); e == nil {
			t.Errorf("%s: read as %+v", name, b)
		}
	}
	for _, ctype := range []string{"multipart/form-data", "multipart/form-data; boundary=\"a\\\"b\"", "multipart/mixed; boundary=b", "multipart/form-data; boundary=" + strings.Repeat("b", 71)} {
		if _, e := ParseForm(ctype, []byte("--b\r\n"+model+"\r\n--b--\r\n"), Limits{}); e == nil {
			t.Errorf("%s is taken", ctype)
		}
	}
}

// TestFormOfIdentityEncoding reads parts that say that they are not encoded, as clients in Ruby, Dart and older Java do.
func TestFormOfIdentityEncoding(t *testing.T) {
	for coding, ok := range map[string]bool{"binary": true, "8bit": true, "7BIT ": true, "": false, "base64": false, "quoted-printable": false, "binary, base64": false} {
		body := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: " + coding + "\r\n\r\ntiny\r\n--b--\r\n"
		b, e := ParseForm("multipart/form-data; boundary=b", []byte(body), Limits{})
		if (e == nil) != ok || ok && b.Model != "tiny" {
			t.Errorf("Content-Transfer-Encoding %q: %+v, %v; want it to be read: %t", coding, b, e, ok)
		}
	}
}

// FuzzForm holds what is read of forms against the standard library's reader: whatever is accepted has the same model there,
// and what engines get has no transfer parameters and else the same parts.
func FuzzForm(f *testing.F) {
	part := func(name, value string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
	}
	f.Add(part("model", "tiny") + part("kv_transfer_params", "x") + part("file", "\r\n--") + "--b--\r\n")
	f.Add(part("ec_transfer_params", "x") + part("model", "") + "--b--")
	f.Add(part("model", "tiny") + part("vllm_xargs", `{"a":1,"kv\u005ftransfer_params":"x"}`) + "--b--")
	f.Add(part("model", "tiny") + part("vllm_xargs", `{"a":{"b":[1]}}`) + part("bootstrap_room", "1") + "--b--")
	f.Add("--b\r\nContent-Type: a\r\nContent-Disposition: form-data; name=model\r\n\r\n\r\n--b--\r\n")
	read := func(body []byte) (names, values []string, ok bool) {
		r := multipart.NewReader(bytes.NewReader(body), "b")
		for {
			p, err := r.NextRawPart()
			if errors.Is(err, io.EOF) {
				return names, values, true
			}
			if err != nil {
				return nil, nil, false
			}
			v, err := io.ReadAll(p)
			if err != nil {
				return nil, nil, false
			}
			names, values = append(names, p.FormName()), append(values, string(v))
		}
	}
	f.Fuzz(func(t *testing.T, body string) {
		b, e := ParseForm("multipart/form-data; boundary=b", []byte(body), Limits{})
		if e != nil {
			return
		}
		names, values, ok := read([]byte(body))
		if !ok {
			t.Fatalf("%q is no form to the other reader", body)
		}
		model, kept, keptValues := "", []string(nil), []string(nil)
		for i, n := range names {
			if n == "model" {
				model = values[i]
			}
			if n == "vllm_xargs" {
				var x map[string]any
				if err := json.Unmarshal([]byte(values[i]), &x); err != nil || hasTransferKey(x) {
					t.Fatalf("%q: vllm_xargs %q was let through: %v", body, values[i], err)
				}
			}
			if everywhere[n] != meansTransfer && n != "request_id" {
				kept, keptValues = append(kept, n), append(keptValues, values[i])
			}
		}
		if model != b.Model {
			t.Fatalf("%q: model %q; the other reader has %q", body, b.Model, model)
		}
		out := b.AppendDecode(nil, "id", nil)
		if len(kept) == 0 {
			return
		}
		gotNames, gotValues, ok := read(out)
		if !ok || strings.Join(gotNames, "\x00") != strings.Join(kept, "\x00") || strings.Join(gotValues, "\x00") != strings.Join(keptValues, "\x00") {
			t.Fatalf("%q became %q: %q, %v", body, out, gotNames, ok)
		}
	})
}

// hasTransferKey reports whether a value names hand-off instructions at any depth.
func hasTransferKey(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			if answer.IsTransferKey([]byte(key)) || hasTransferKey(inner) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, hasTransferKey)
	}
	return false
}
