// Package kubetest renders the Helm chart in deploy/helm/pdrouter by Helm's own library, decodes what comes of it strictly against the types
// of the Kubernetes API, and checks it. It is a module of its own, so that Helm and these types stay out of the gateway's dependencies.
package kubetest

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

const (
	chartFolder = "../../deploy/helm/pdrouter"
	// manifestFolder has what the chart makes of values.yaml there, for those who do not use Helm.
	manifestFolder = "../../deploy/manifests"
	namespace      = "llm"
)

// render returns what each template of the chart makes of the values, by the template's name; templates that make nothing are left out.
func render(values map[string]any) (map[string]string, error) {
	c, err := loader.Load(chartFolder)
	if err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependencies(c, values); err != nil {
		return nil, err
	}
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "pdrouter", Namespace: namespace, IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return rendered(c, all)
}

func rendered(c *chart.Chart, values chartutil.Values) (map[string]string, error) {
	texts, err := engine.Engine{Strict: true}.Render(c, values)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for name, text := range texts {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(text) != "" {
			out[path.Base(name)] = text
		}
	}
	return out, nil
}

// parse returns YAML as values.
func parse(text string) (map[string]any, error) {
	values := map[string]any{}
	return values, yaml.Unmarshal([]byte(text), &values)
}

// manifestValues are those that the plain manifests are made with.
func manifestValues() (map[string]any, error) {
	b, err := os.ReadFile(manifestFolder + "/values.yaml")
	if err != nil {
		return nil, err
	}
	return parse(string(b))
}

// plain returns the text of one plain manifest.
func plain(template, text string) string {
	return "# Rendered from deploy/helm/pdrouter/templates/" + template + " by make manifests: do not edit.\n" + strings.TrimSpace(text) + "\n"
}

// decode decodes every document strictly: a key that the API type does not have, or a key twice, is an error. Kinds that Kubernetes itself
// does not define are Unstructured.
func decode(texts map[string]string) ([]runtime.Object, error) {
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var all []runtime.Object
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		for doc := range bytes.SplitSeq([]byte(texts[name]), []byte("\n---\n")) {
			if allComments(doc) {
				continue
			}
			o, _, err := strict.Decode(doc, nil, nil)
			if runtime.IsNotRegisteredError(err) {
				u := &unstructured.Unstructured{}
				err = utilyaml.UnmarshalStrict(doc, &u.Object)
				o = u
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, o)
		}
	}
	return all, nil
}

// allComments reports whether a document says nothing.
func allComments(doc []byte) bool {
	for line := range bytes.SplitSeq(doc, []byte("\n")) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// of returns the objects of one type.
func of[T any](all []runtime.Object) []*T {
	var out []*T
	for _, o := range all {
		if v, ok := o.(any).(*T); ok {
			out = append(out, v)
		}
	}
	return out
}
