// Package kubetest checks the manifests in configs/kubernetes. It is a module of its own, so that the Kubernetes API
// types stay out of the gateway's dependencies; it has only tests and what reads the manifests for them.
package kubetest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// manifests are all objects of a folder by kind.
type manifests struct {
	deployments []appsv1.Deployment
	services    []corev1.Service
	configs     []corev1.ConfigMap
	accounts    []corev1.ServiceAccount
	budgets     []policyv1.PodDisruptionBudget
	networks    []networkingv1.NetworkPolicy
	objects     int
}

// load decodes every document of every file in dir strictly: a key that the API type does not have is an error.
func load(dir string) (*manifests, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	m := &manifests{}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(b)))
		for {
			doc, err := docs.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			if err := m.add(doc); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	return m, nil
}

func (m *manifests) add(doc []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &kind); err != nil {
		return err
	}
	if kind.Kind == "" && len(bytes.TrimSpace(doc)) == 0 {
		return nil
	}
	m.objects++
	switch kind.APIVersion + " " + kind.Kind {
	case "apps/v1 Deployment":
		return strict(doc, &m.deployments)
	case "v1 Service":
		return strict(doc, &m.services)
	case "v1 ConfigMap":
		return strict(doc, &m.configs)
	case "v1 ServiceAccount":
		return strict(doc, &m.accounts)
	case "policy/v1 PodDisruptionBudget":
		return strict(doc, &m.budgets)
	case "networking.k8s.io/v1 NetworkPolicy":
		return strict(doc, &m.networks)
	}
	if allComments(doc) {
		m.objects--
		return nil
	}
	return fmt.Errorf("kind %q of %q is not known here", kind.Kind, kind.APIVersion)
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

func strict[T any](doc []byte, list *[]T) error {
	var v T
	if err := yaml.UnmarshalStrict(doc, &v, yaml.DisallowUnknownFields); err != nil {
		return err
	}
	*list = append(*list, v)
	return nil
}
