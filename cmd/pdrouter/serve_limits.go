package main

import "pdrouter/router"

// limits gives the router what bounds each client.
func (g *gateway) limits(_ *loaded, _ *router.Parts) error { return nil }
