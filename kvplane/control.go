package kvplane

import "net/http"

// ControlHandler serves GET /kvplane/v1/events and POST /kvplane/v1/transfers/{id}/cancel. authorize refuses a request
// by returning an error; cancel must not block.
func ControlHandler(events *Events, cancel func(id TransferID, why string), authorize func(r *http.Request) error) http.Handler {
	return http.NewServeMux()
}
