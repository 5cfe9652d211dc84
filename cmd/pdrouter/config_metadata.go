package main

import (
	"errors"
	"strconv"

	"pdrouter/internal/field"
	"pdrouter/internal/redisdb"
	"pdrouter/metadata/cache"
	"pdrouter/metadata/routes"
)

// element returns the dotted key of a list's element.
func element(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// metadataConfig says where the records of the engines' ranks are kept.
type metadataConfig struct {
	Store string         `yaml:"store"` // memory (default; one gateway) or redis (shared by several)
	Redis redisdb.Config `yaml:"redis"` // for store redis
}

// advancedConfig has settings whose defaults fit: intervals, buffers and pauses of the parts that the gateway is made of.
type advancedConfig struct {
	MetadataCache  cache.Config  `yaml:"metadata_cache"`  // this gateway's own copy of the records
	MetadataRoutes routes.Config `yaml:"metadata_routes"` // what agents may publish
}

func (a advancedConfig) validate() error {
	return errors.Join(field.Under("advanced.metadata_cache", a.MetadataCache.Validate()), field.Under("advanced.metadata_routes", a.MetadataRoutes.Validate()))
}

func (m metadataConfig) withDefaults() metadataConfig {
	if m.Store == "" {
		m.Store = "memory"
	}
	return m
}

func (m metadataConfig) validate() error {
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
