package kvplane

import (
	"context"
	"errors"
	"net/http"
)

// Watch reads an engine's events until ctx ends, whose cause it then returns. A broken stream is opened again, ever
// more slowly; what happened meanwhile is lost, which delays books and nothing else.
func Watch(ctx context.Context, client *http.Client, base string, token func() (string, error), each func(TransferEvent)) error {
	return errors.ErrUnsupported
}

// CancelTransfer asks an engine to give a transfer up. nil means that it has taken the request.
func CancelTransfer(ctx context.Context, client *http.Client, base string, token func() (string, error), id TransferID, why string) error {
	return errors.ErrUnsupported
}
