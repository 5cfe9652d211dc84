package router

import (
	"crypto/tls"
	"errors"
	"syscall"
)

// refuses reports whether an engine will take no connection as long as it stays as it is: nothing listens, or its certificate is not
// what the configuration wants.
func refuses(err error) bool {
	var unverified *tls.CertificateVerificationError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &unverified)
}

// ourOwn reports whether there is no connection because this process can have no more.
func ourOwn(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// faulty says whose fault a leg's end is.
type faulty uint8

const (
	faultNone     faulty = iota
	faultUnknown         // nothing is known of the engine by it: the request's own, the client's, a peer's, ours
	faultOverload        // the engine has too much to do
	faultEngine          // it is broken
)

// faultOf says whose fault the end of a leg is.
func (l *call) faultOf(v verdict) faulty {
	busy := l.status == 503 || l.status == 429
	switch v {
	case vUsable:
		return faultNone
	case vRejected, vTooLarge:
		return faultUnknown
	case vRefused: // connections are for reach, tickets are ours
		if busy {
			return faultOverload
		}
		return faultUnknown
	case vBroken:
		if l.ans.ErrorCode == codeTransferFailed || l.status == 501 { // 501 is what this engine cannot, not what it does wrong
			return faultUnknown
		}
	case vLost:
		if busy {
			return faultOverload
		}
		if l.Cause() != nil {
			return faultUnknown
		}
	case vLate:
		if why := l.Cause(); errors.Is(why, errTransferLate) || errors.Is(why, errHurried) {
			return faultUnknown
		}
	}
	return faultEngine
}
