package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// ownNamespace is where a pod finds the namespace that it is in.
const ownNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

var (
	podResource  = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	poolResource = schema.GroupVersionResource{Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"}
)

// Connect returns a client of the API server, and the namespace that is meant. Without a kubeconfig it is that of the service account of this
// process's own pod; without a namespace that of the kubeconfig or of the pod.
func Connect(kubeconfig, namespace string) (dynamic.Interface, string, error) {
	var to *rest.Config
	var err error
	if kubeconfig == "" {
		to, err = rest.InClusterConfig()
		if err == nil && namespace == "" {
			var b []byte
			b, err = os.ReadFile(ownNamespace)
			namespace = strings.TrimSpace(string(b))
		}
	} else {
		file := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}, nil)
		to, err = file.ClientConfig()
		if err == nil && namespace == "" {
			namespace, _, err = file.Namespace()
		}
	}
	if err != nil {
		return nil, "", fmt.Errorf("kubernetes: %w", err)
	}
	to.UserAgent, to.WarningHandler = "pdrouter", rest.NoWarnings{}
	client, err := dynamic.NewForConfig(to)
	return client, namespace, err
}

// selectorOf returns the label selector that asks for one of the values of each label.
func selectorOf(all map[string][]string, more map[string]string) (string, error) {
	s := labels.NewSelector()
	add := func(label string, values []string) error {
		r, err := labels.NewRequirement(label, selection.In, values)
		if err == nil {
			s = s.Add(*r)
		}
		return err
	}
	for _, label := range slices.Sorted(maps.Keys(all)) {
		if err := add(label, all[label]); err != nil {
			return "", err
		}
	}
	for _, label := range slices.Sorted(maps.Keys(more)) {
		if err := add(label, []string{more[label]}); err != nil {
			return "", err
		}
	}
	if s.Empty() {
		return "", errors.New("no labels select the pods: every pod of the namespace would be an engine")
	}
	return s.String(), nil
}

// reflect keeps a store up to date with a resource until ctx ends: one list, then a watch, and a list again where a watch cannot go on.
func (w *Watcher) reflect(ctx context.Context, of dynamic.ResourceInterface, which part, fields, labels string, into cache.ReflectorStore) {
	noted := func(err error) {
		if ctx.Err() == nil {
			w.note(which, err)
		}
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector, o.LabelSelector = fields, labels
			ctx, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			all, err := of.List(ctx, o)
			if err != nil {
				noted(err)
				return nil, err
			}
			return all, nil // and the watch that follows is what counts
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector, o.LabelSelector = fields, labels
			seen, err := of.Watch(ctx, o)
			noted(err)
			return seen, err
		},
	}
	r := cache.NewReflectorWithOptions(lw, &unstructured.Unstructured{}, into, cache.ReflectorOptions{
		Name: "pdrouter", Backoff: &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 6, Cap: longestPause},
	})
	r.RunWithContext(ctx)
}

const (
	// listTimeout bounds one list.
	listTimeout = 30 * time.Second
	// longestPause is the longest between two tries to reach the API server.
	longestPause = 5 * time.Second
)
