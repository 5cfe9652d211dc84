package leg

import (
	"errors"
	"fmt"
)

// The causes with which a leg is ended.
var (
	ErrEnded        = errors.New("the gateway no longer needs the leg")
	ErrLate         = errors.New("the leg's time is over")
	ErrTransferLate = errors.New("no token within the transfer's time")
	ErrHurried      = errors.New("the client has left, and the leg had time to start") // so that nothing is known of a transfer
	ErrAtWork       = fmt.Errorf("%w; its engine runs all requests that it has", ErrHurried)
)
