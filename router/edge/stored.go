package edge

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"pdrouter/auth"
	"pdrouter/router/fleet"
	"pdrouter/router/openai"
	"pdrouter/router/reason"
	"pdrouter/router/stored"
)

// held finds the engine that holds a response, and the name that its model was asked for by, for who may have it.
func (s *Snapshot) held(ctx context.Context, id, param string, who auth.Principal) (e *fleet.Engine, named string, bad *openai.Error) {
	if s.Responses == nil || !stored.IsResponseID(id) {
		return nil, "", errNoResponse(reason.UnknownResponse, id, param)
	}
	value, ok, err := s.Responses.Get(ctx, id)
	if err != nil {
		return nil, "", errResponsesUnknown(err)
	}
	h, read := stored.ReadHolder(value)
	if !ok || !read || h.Owner != stored.Owner(who.Tenant, who.Subject) { // other callers must not learn that it exists
		return nil, "", errNoResponse(reason.UnknownResponse, id, param)
	}
	if e = s.Fleet.Engine(h.Engine); e == nil {
		return nil, "", errNoResponse(reason.ResponseEngineGone, id, param)
	}
	return e, h.Model, nil
}

// findStored finds the engine that holds the response that the request is for, or is the next of. Other gateways may be asked
// for it, so the caller's limits come before.
func (q *request) findStored(ctx context.Context) (e *openai.Error) {
	if q.route.does != askStored {
		if q.Body.Previous != "" {
			return q.readPrevious(ctx)
		}
		return nil
	}
	if q.Pin, q.Body.Model, e = q.snapshot.held(ctx, q.name, "response_id", q.who); e != nil {
		return e
	}
	if q.Model = q.snapshot.Fleet.Models[q.Pin.Model]; !slices.Contains(q.Model.Decode, q.Pin) {
		return errNoResponse(reason.ResponseEngineGone, q.name, "response_id") // it answers no more requests
	}
	if e = q.permitted(); e != nil {
		return e
	}
	q.Path, e = q.route.target(q.name, q.query)
	return e
}

// target is the path that an engine is asked on. Of the query, what engines know is written anew.
func (rt *route) target(name, query string) (string, *openai.Error) {
	target := rt.path + name + rt.suffix
	if rt.method != http.MethodGet || query == "" {
		return target, nil
	}
	given, err := url.ParseQuery(query)
	if err != nil {
		return "", openai.ErrBadRequest(reason.BadField, "", "The query cannot be read.")
	}
	sep := "?"
	for _, key := range []string{"starting_after", "stream"} {
		values := given[key]
		if len(values) == 0 {
			continue
		}
		if len(values) > 1 {
			return "", openai.ErrBadRequest(reason.BadField, key, "%s must be given once.", key)
		}
		value := ""
		if key == "stream" {
			var on bool
			on, err = strconv.ParseBool(values[0])
			value = strconv.FormatBool(on)
		} else {
			var n uint64
			n, err = strconv.ParseUint(values[0], 10, 31)
			value = strconv.FormatUint(n, 10)
		}
		if err != nil {
			return "", openai.ErrBadRequest(reason.BadField, key, "%s cannot be %.32q.", key, values[0])
		}
		target += sep + key + "=" + value
		sep = "&"
	}
	return target, nil
}

// readPrevious finds the engine that holds the response that this one is the next of: only it can go on.
func (q *request) readPrevious(ctx context.Context) (e *openai.Error) {
	if q.Pin, _, e = q.snapshot.held(ctx, q.Body.Previous, "previous_response_id", q.who); e != nil {
		return e
	}
	if !slices.Contains(q.Model.Decode, q.Pin) {
		return openai.ErrBadRequest(reason.BadField, "previous_response_id", "The response is of another model.")
	}
	return nil
}

func errNoResponse(why reason.Reason, id, param string) *openai.Error {
	return openai.ErrBadRequest(why, param, "Response with id '%s' not found.", openai.Clip(id, 128))
}

func errResponsesUnknown(cause error) *openai.Error {
	return openai.NewError(reason.ResponsesUnknown, "Which engine holds the response is not known at present.").Because(cause)
}
