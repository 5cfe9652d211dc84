package edge

// PassedRoutes are the routes that are passed to one engine.
func PassedRoutes() (all []string) {
	for path, rt := range routes {
		if rt.does == pass {
			all = append(all, path)
		}
	}
	return all
}

// Routes are all routes.
func Routes() (all []string) {
	for path := range routes {
		all = append(all, path)
	}
	return all
}

// HasRoute reports whether a POST to the path is served.
func HasRoute(path string) bool {
	_, _, e := findRoute([]byte(path), "POST")
	return e == nil
}
