// Reads manifests by the published types, strictly: a field that they do not have is an error, and so is a value of
// another type.
//
//	check FILE...
package main

import (
	"bytes"
	"fmt"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	kustomize "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"
)

var kinds = map[string]func() any{
	"v1 ConfigMap":                        func() any { return &core.ConfigMap{} },
	"v1 Namespace":                        func() any { return &core.Namespace{} },
	"v1 Pod":                              func() any { return &core.Pod{} },
	"v1 ServiceAccount":                   func() any { return &core.ServiceAccount{} },
	"apps/v1 DaemonSet":                   func() any { return &apps.DaemonSet{} },
	"monitoring.coreos.com/v1 PodMonitor": func() any { return &monitoring.PodMonitor{} },
	"rbac.authorization.k8s.io/v1 ClusterRole":        func() any { return &rbac.ClusterRole{} },
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding": func() any { return &rbac.ClusterRoleBinding{} },
	"kustomize.config.k8s.io/v1beta1 Kustomization":   func() any { return &kustomize.Kustomization{} },
}

func check(document []byte) (string, error) {
	var meta struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(document, &meta); err != nil {
		return "", err
	}
	kind := meta.APIVersion + " " + meta.Kind
	make, is := kinds[kind]
	if !is {
		return kind, fmt.Errorf("no such kind here")
	}
	return kind, yaml.UnmarshalStrict(document, make())
}

func main() {
	failed := false
	for _, path := range os.Args[1:] {
		text, err := os.ReadFile(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			kind, err := check(document)
			if err != nil {
				failed = true
				fmt.Fprintf(os.Stderr, "%s: %s: %v\n", path, kind, err)
			} else {
				fmt.Printf("%s: %s is as its type says\n", path, kind)
			}
		}
	}
	if failed {
		os.Exit(1)
	}
}
