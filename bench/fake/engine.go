package fake

import (
	"bytes"
	"fmt"
	"sync/atomic"

	"github.com/valyala/fasthttp"
)

// leg is the count that a request's body belongs to. Both connectors of vLLM say in kv_transfer_params which leg it is. With
// SGLang both legs have a room and no such params, and are what their engine is.
func (f *engine) leg(body []byte) *atomic.Int64 {
	role := ""
	switch {
	case f.mode == SGLang:
		if hasRoom(body) && !bytes.Contains(body, []byte(`"kv_transfer_params"`)) {
			role = f.role
		}
	case IsTrue(body, "do_remote_decode"):
		role = "prefill"
	case IsTrue(body, "do_remote_prefill"):
		role = "decode"
	}
	switch {
	case role != f.role:
		return &f.other
	case role == "prefill":
		return &f.prefill
	}
	return &f.decode
}

// hasRoom reports whether a body names the room in which SGLang's engines meet, and the server where prefill waits.
func hasRoom(body []byte) bool {
	_, room, ok := bytes.Cut(body, []byte(`"bootstrap_room":`))
	room = bytes.TrimLeft(room, " ")
	return ok && len(room) > 0 && room[0] >= '0' && room[0] <= '9' && bytes.Contains(body, []byte(`"bootstrap_host"`))
}

// describe answers what routers ask of an engine before they route to it, with what stock engines answer: nothing more is known
// of a path than that engines of the mode have it.
func (f *engine) describe(q *fasthttp.RequestCtx) {
	path, sglang := string(q.Path()), f.mode == SGLang
	q.SetContentType("application/json")
	switch {
	case path == "/v1/models":
		owner := "vllm"
		if sglang {
			owner = "sglang"
		}
		fmt.Fprintf(q, `{"object":"list","data":[{"id":%q,"object":"model","created":1700000000,"owned_by":%q,"root":%[1]q,"max_model_len":131072}]}`, Model, owner)
	case path == "/version" && !sglang:
		q.SetBodyString(`{"version":"0.26.0"}`)
	case (path == "/server_info" || path == "/get_server_info") && sglang:
		fmt.Fprintf(q, `{"model_path":%q,"served_model_name":%[1]q,"tp_size":1,"dp_size":1,"load_balance_method":"round_robin","disaggregation_mode":%q,"disaggregation_bootstrap_port":8998,"version":"0.5.23","internal_states":[{}]}`, Model, f.role)
	case (path == "/model_info" || path == "/get_model_info") && sglang:
		fmt.Fprintf(q, `{"model_path":%q,"tokenizer_path":%[1]q,"is_generation":true}`, Model)
	case (path == "/v1/loads" || path == "/get_load") && sglang:
		q.SetBodyString(`[{"dp_rank":0,"num_reqs":0,"num_waiting_reqs":0,"num_tokens":0}]`)
	default:
		q.SetStatusCode(fasthttp.StatusNotFound)
	}
}
