package kubesecrets

import (
	"context"
	"encoding/base64"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"pdrouter/internal/discovery/kubernetes"
)

// kube has the Secrets of one namespace.
type kube struct{ secrets dynamic.ResourceInterface }

// Connect returns the Secrets of a namespace, and its name. Without a kubeconfig the service account of this process's own pod is used;
// without a namespace that of the kubeconfig or of the pod.
func Connect(kubeconfig, namespace string) (Store, string, error) {
	client, namespace, err := kubernetes.Connect(kubeconfig, namespace)
	if err != nil {
		return nil, "", err
	}
	return kube{client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"}).Namespace(namespace)}, namespace, nil
}

// Get implements Store.
func (k kube) Get(ctx context.Context, name string) (Data, error) {
	d, _, err := k.read(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return d, err
}

func (k kube) read(ctx context.Context, name string) (Data, *unstructured.Unstructured, error) {
	u, err := k.secrets.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	texts, _, err := unstructured.NestedStringMap(u.Object, "data")
	if err != nil {
		return nil, nil, fmt.Errorf("secret %s: %w", name, err)
	}
	d := Data{}
	for key, text := range texts {
		if d[key], err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, nil, fmt.Errorf("secret %s: %s: %w", name, key, err)
		}
	}
	return d, u, nil
}

// Create implements Store.
func (k kube) Create(ctx context.Context, name string, d Data) error {
	_, err := k.secrets.Create(ctx, object(name, d), metav1.CreateOptions{FieldManager: "pdrouter"})
	return err
}

// Replace implements Store. The API server refuses a version that is not the one that was read.
func (k kube) Replace(ctx context.Context, name string, was, d Data) error {
	is, u, err := k.read(ctx, name)
	if err != nil {
		return err
	}
	if !is.equal(was) {
		return fmt.Errorf("secret %s was changed meanwhile: another call is under way", name)
	}
	u.Object["data"] = object(name, d).Object["data"]
	_, err = k.secrets.Update(ctx, u, metav1.UpdateOptions{FieldManager: "pdrouter"})
	return err
}

func object(name string, d Data) *unstructured.Unstructured {
	data := map[string]any{}
	for key, b := range d {
		data[key] = base64.StdEncoding.EncodeToString(b)
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"app.kubernetes.io/managed-by": "pdrouter"}}, "data": data}}
}
