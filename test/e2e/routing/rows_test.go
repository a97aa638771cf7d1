package routing

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	migrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"xds-server/test/lab"
)

// object is any API object.
type object interface {
	runtime.Object
	metav1.Object
}

// row is what only Kubernetes 1.37 serves of one resource (native.md's version pairs).
type row struct {
	schema.GroupVersion
	resource   string
	namespaced bool
	// statusOnly says that the resource itself is served by 1.36 too.
	statusOnly bool
	object     func() object
	// status changes the object's status; nil if the resource has no such subresource.
	status func(o object, message string)
}

// collection is the path of the row's collection.
func (r row) collection() string {
	path := "/apis/" + r.String() + "/"
	if r.namespaced {
		path += "namespaces/default/"
	}
	return path + r.resource
}

// upgradeRows are all rows of the pair 1.36 → 1.37.
func upgradeRows(l *lab.Lab) []row {
	return []row{{
		GroupVersion: migrationv1.SchemeGroupVersion, resource: "storageversionmigrations",
		object: func() object {
			return &migrationv1.StorageVersionMigration{Spec: migrationv1.StorageVersionMigrationSpec{
				Resource: metav1.GroupResource{Resource: "secrets"},
			}}
		},
		status: func(o object, message string) {
			o.(*migrationv1.StorageVersionMigration).Status.Conditions = conditions("Running", message)
		},
	}, {
		GroupVersion: certificatesv1.SchemeGroupVersion, resource: "clustertrustbundles",
		object: func() object {
			return &certificatesv1.ClusterTrustBundle{Spec: certificatesv1.ClusterTrustBundleSpec{
				TrustBundle: string(l.PKI.CA.CertPEM()),
			}}
		},
	}, {
		GroupVersion: certificatesv1.SchemeGroupVersion, resource: "podcertificaterequests", namespaced: true,
		object: func() object { return podCertificateRequest().DeepCopy() },
		status: func(o object, _ string) {
			// Once denied, nothing of it may change any more.
			o.(*certificatesv1.PodCertificateRequest).Status.Conditions = conditions("Denied", "by this test")
		},
	}, {
		GroupVersion: resourcev1.SchemeGroupVersion, resource: "devicetaintrules",
		object: func() object {
			return &resourcev1.DeviceTaintRule{Spec: resourcev1.DeviceTaintRuleSpec{
				Taint: resourcev1.DeviceTaint{Key: "example.com/broken", Effect: resourcev1.DeviceTaintEffectNone},
			}}
		},
		status: func(o object, message string) {
			o.(*resourcev1.DeviceTaintRule).Status.Conditions = conditions("EvictionInProgress", message)
		},
	}, {
		GroupVersion: storagev1.SchemeGroupVersion, resource: "csinodes", statusOnly: true,
		object: func() object {
			return &storagev1.CSINode{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{}}}
		},
		// Accepted, and kept only where the feature gate CSIVolumeHealth is on.
		status: func(o object, _ string) {
			o.(*storagev1.CSINode).Status.StorageHealth = []storagev1.StorageHealth{{Name: "csi.example.com"}}
		},
	}}
}

// since is one fixed time, so that a condition that is written again is the same.
var since = metav1.NewTime(time.Now().Truncate(time.Second))

func conditions(kind, message string) []metav1.Condition {
	return []metav1.Condition{{
		Type: kind, Status: metav1.ConditionTrue, Reason: "Test", Message: message, LastTransitionTime: since,
	}}
}

// podCertificateRequest is the same for every call, since none of it may be changed.
var podCertificateRequest = sync.OnceValue(func() *certificatesv1.PodCertificateRequest {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		panic(err) // not for an empty template and such a key
	}
	seconds := int32(3600)
	return &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceDefault},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: "example.com/signer", PodName: "pod", PodUID: "pod-uid",
			ServiceAccountName: "default", ServiceAccountUID: "account-uid", NodeName: "node", NodeUID: "node-uid",
			MaxExpirationSeconds: &seconds, StubPKCS10Request: csr,
		},
	}
})
