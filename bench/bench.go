// Package bench measures the gateway beside a floor and its peers in one run. It speaks HTTP to running processes
// and asserts no time; a run whose counts are wrong is void.
package bench
