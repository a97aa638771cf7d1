package documents

import (
	"encoding/json"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// refuse answers with an error as Kubernetes' Status, laid out as kube-apiservers do before they know an encoding.
func refuse(w http.ResponseWriter, err error) {
	known := apierrors.APIStatus(apierrors.NewInternalError(err))
	errors.As(err, &known)
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	body, _ := json.MarshalIndent(status, "", "  ") // a Status always has a JSON form
	w.Header().Set("Content-Type", mediaJSON)
	w.WriteHeader(int(status.Code))
	_, _ = w.Write(body) // a client that has gone away
}
