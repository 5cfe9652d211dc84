// Package routertest is what tests of a whole gateway are made of: fake engines that do wrong as they are told, a network in memory, virtual
// time, and a gateway that is checked for what it leaves behind.
//
//	s := routertest.NewPool(t, connector.NamePush, 2, 1, nil)         // two prefill engines, one decode engine
//	s.SetFaults(map[string][]routertest.Fault{"prefill-0": {{Leg: "prefill", Do: routertest.DoHang}}})
//	g := routertest.Start(t, s.Config, router.Parts{})                // until the test ends
//	r := g.Post(routertest.PathCompletions, routertest.PlainBody)
//
// It reaches a gateway by HTTP, by the interface of package router, and by router.Debug. It knows no fault table: that is in the tests. Only
// tests import it; tests inside package router cannot.
package routertest

// Routes of the gateway, as clients write them.
const (
	PathChat        = "/v1/chat/completions"
	PathCompletions = "/v1/completions"
	PathMessages    = "/v1/messages"
	PathResponses   = "/v1/responses"
	PathGenerate    = "/inference/v1/generate"
	PathBatch       = "/v1/chat/completions/batch"
	PathModels      = "/v1/models"
	PathRealtime    = "/v1/realtime"
	PathHealth      = "/health"
	PathLive        = "/livez"
	PathReady       = "/readyz"
)
