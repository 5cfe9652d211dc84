// Package policies decides how a request is served: split over a prefill and a decode engine or by one engine
// alone, and by which. A policy is read from YAML; choosing is a pure function over a snapshot of the fleet.
package policies
