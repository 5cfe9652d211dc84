package openai

import (
	"maps"

	"pdrouter/router/openai/jsonscan"
)

// meaning is what a member of a body is to the router.
type meaning uint8

const (
	meansNothing meaning = iota
	meansModel
	meansStream
	meansStreamOptions // an object of booleans that needs stream
	meansStreamDetail  // the same without a rule that the router knows
	meansN
	meansBestOf
	meansLimit     // how many tokens the answer may have
	meansLimitOver // the same, and it goes before the limit
	meansLimitToo  // the same, and only the engine knows what it is for
	meansMinTokens
	meansSalt
	meansRequestID
	meansCacheKey   // what the client calls prompts that begin alike
	meansUser       // what the client calls its own user
	meansLever      // how engines tell their operators of the request, or name what they keep between requests
	meansPriority   // how soon the engine begins: the less the sooner
	meansExtraKey   // which of the engine's caches the request shares
	meansTokenIDs   // the answer is to have token ids
	meansPromptText // the answer is to have the prompt as it was rendered
	meansEcho
	meansBeam
	meansLogprobs
	meansPromptLogprobs
	meansLogprobIDs // an array of the tokens whose log probabilities are wanted
	meansEmbeds
	meansStop
	meansSeed
	meansTemperature
	meansPrompt     // text or tokens, or arrays of them
	meansTokens     // an array of token ids
	meansMessages   // an array of messages
	meansBatch      // an array of such arrays, each of which is a prompt
	meansInput      // text or an array of items
	meansText       // text that is part of the prompt
	meansParts      // parts of content, none of which is text
	meansContent    // what may name media, whatever its kind is
	meansMedia      // media, or what holds some at any depth
	meansFeatures   // media that were made ready before, and the ids that engines cache them by
	meansTransfer   // hand-off instructions to the engine
	meansXargs      // an object that may hold such
	meansSampling   // an object that may hold such in its extra_args
	meansLimits     // an object that holds the limits
	meansExtraArgs  // of that object: it may hold hand-off instructions
	meansStore      // the engine keeps the answer
	meansBackground // the engine answers before it has an answer
	meansPrevious   // an answer that an engine has kept is part of the prompt
	meansTools      // what the engine may call
	meansFunctions  // what the client may be asked to call
	meansChoice     // whether the engine must call one
	meansGrammar    // what form the answer must have: the engine begins when that is compiled, and with others before
	meansTruncate   // how much of the prompt is used; below 0 as much as leaves room for the answer
	meansTruncation // the same, said in words
)

// member is one member that the router looks at.
type member struct {
	means meaning
	param string // how errors name it
}

// meanings are members by their names.
type meanings map[string]meaning

// everywhere are the members that every shape has.
var everywhere = meanings{
	"prompt_cache_key": meansCacheKey, "user": meansUser,
	"model": meansModel, "stream": meansStream, "cache_salt": meansSalt, "request_id": meansRequestID,
	"kv_transfer_params": meansTransfer, "ec_transfer_params": meansTransfer,
	"bootstrap_host": meansTransfer, "bootstrap_port": meansTransfer, "bootstrap_room": meansTransfer, "bootstrap_pair_key": meansTransfer,
	"decode_tp_size": meansTransfer, "disagg_prefill_dp_rank": meansTransfer, "routed_dp_rank": meansTransfer, "data_parallel_rank": meansTransfer,
	"rid": meansRequestID, "session_id": meansLever, "session_params": meansLever, "priority": meansPriority, "extra_key": meansExtraKey,
	"vllm_xargs": meansXargs, "sampling_params": meansSampling,
	"response_format": meansGrammar, "structured_outputs": meansGrammar, "tool_choice": meansChoice,
	"guided_json": meansGrammar, "guided_regex": meansGrammar, "guided_choice": meansGrammar, "guided_grammar": meansGrammar,
}

// completionsToo are the members that completions and chat have in common.
var completionsToo = meanings{
	"stream_options": meansStreamOptions, "n": meansN, "max_tokens": meansLimit, "min_tokens": meansMinTokens, "stop": meansStop,
	"seed": meansSeed, "temperature": meansTemperature, "logprobs": meansLogprobs, "top_logprobs": meansLogprobs,
	"logprob_token_ids": meansLogprobIDs,
}

// outermost are the members of an outermost object. What comes later goes before.
func outermost(of ...meanings) *vocabulary {
	all := maps.Clone(everywhere)
	for _, m := range of {
		maps.Copy(all, m)
	}
	return within("", all)
}

// within are the members of the object that errors name by the prefix path.
func within(path string, all meanings) *vocabulary {
	v := &vocabulary{}
	for name, means := range all {
		i := placeOf(jsonscan.KeySum([]byte(name)))
		for v[i].name != "" {
			i = (i + 1) % len(v)
		}
		v[i].name, v[i].member = name, member{means, path + name}
	}
	return v
}

// vocabulary are the members that mean something in an object, each in the first free place from that of its key's sum on. A map
// would hash each key anew. It has far more places than members.
type vocabulary [128]struct {
	name string // "" where there is none
	member
}

// placeOf is where in a vocabulary to look for a key first.
func placeOf(sum uint64) int { return int(sum * 0x9e3779b97f4a7c15 >> 57) }

// find returns the member of the key, which has that sum; nil if there is none.
func (v *vocabulary) find(key []byte, sum uint64) *member {
	for i := placeOf(sum); v[i].name != ""; i = (i + 1) % len(v) {
		if v[i].name == string(key) {
			return &v[i].member
		}
	}
	return nil
}
