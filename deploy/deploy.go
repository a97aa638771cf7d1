// Package deploy holds what is put into a cluster beside the nodes' own files.
package deploy

import _ "embed"

// RBAC is rbac.yaml: what xds-server's user may do in the cluster.
//
//go:embed rbac.yaml
var RBAC string
