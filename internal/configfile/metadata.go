package configfile

import (
	"errors"
	"strconv"

	"pdrouter/internal/field"
	"pdrouter/internal/redisdb"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/routes"
)

// Element returns the dotted key of a list's element.
func Element(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// Metadata says where the records of the engines' ranks are kept.
type Metadata struct {
	Store string         `yaml:"store"` // memory (default; one gateway) or redis (shared by several, which also count each other's load then)
	Redis redisdb.Config `yaml:"redis"` // for store redis
}

// Advanced has settings whose defaults fit: intervals, buffers and pauses of the parts that the gateway is made of.
type Advanced struct {
	MetadataCache  cache.Config  `yaml:"metadata_cache"`  // this gateway's own copy of the records
	MetadataRoutes routes.Config `yaml:"metadata_routes"` // what agents may publish
}

func (a Advanced) validate() error {
	return errors.Join(field.Under("advanced.metadata_cache", a.MetadataCache.Validate()), field.Under("advanced.metadata_routes", a.MetadataRoutes.Validate()))
}

func (m Metadata) withDefaults() Metadata {
	if m.Store == "" {
		m.Store = "memory"
	}
	return m
}

func (m Metadata) validate() error {
	var errs []error
	switch m.Store {
	case "memory":
		if !m.Redis.IsZero() {
			errs = append(errs, field.Errorf("metadata.redis", "is set, but metadata.store is memory; want store: redis"))
		}
	case "redis":
		errs = append(errs, field.Under("metadata.redis", m.Redis.Validate()))
	default:
		errs = append(errs, field.Errorf("metadata.store", "is %q; want memory or redis", m.Store))
	}
	return errors.Join(errs...)
}
