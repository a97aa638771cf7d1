package lab

// The versions of every part, in one place.
const (
	etcdVersion    = "3.6.16"
	grpcurlVersion = "1.9.4"
	envoyVersion   = "1.40.0"

	helmVersion      = "4.3.2"
	oldClientVersion = "0.26.1"
)

// The kube-apiservers that the pairs of the tests are made of.
const (
	Kube134 = "1.34.4"
	Kube136 = "1.36.3"
	Kube137 = "1.37.2"
)

// KubeVersions lists every Kubernetes version that the lab builds, oldest first.
var KubeVersions = []string{Kube134, Kube136, Kube137}
