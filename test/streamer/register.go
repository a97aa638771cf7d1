package streamer

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// ContainerName is the name of the one container of each registered pod.
const ContainerName = "main"

// takesWebsockets is the feature by which a node declares that its kubelet takes websockets as they come. A
// kube-apiserver (from 1.36) then passes them on, and otherwise turns them into SPDY itself.
const takesWebsockets = "ExtendWebSocketsToKubelet"

// Node says what a stand-in kubelet looks like in a cluster.
type Node struct {
	Name string
	// Websockets makes kube-apiservers pass websockets on instead of translating them.
	Websockets bool
	// Pods are the names of the pods that run on the node.
	Pods []string
}

// Register makes the stand-in the kubelet of a node of the cluster, and lets the node's pods run, as their status has
// it, in the given namespace (created if it is not there). Registering again moves a node to this stand-in. The
// caller has to be allowed to write nodes, pods and their status.
func (s *Server) Register(ctx context.Context, config *rest.Config, namespace string, node Node) error {
	client, err := corev1client.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client to register node %s: %w", node.Name, err)
	}
	if err := s.registerNode(ctx, client.Nodes(), node); err != nil {
		return fmt.Errorf("register node %s: %w", node.Name, err)
	}
	if err := ensureNamespace(ctx, client, namespace); err != nil {
		return fmt.Errorf("make namespace %s ready for pods: %w", namespace, err)
	}
	for _, pod := range node.Pods {
		if err := s.runPod(ctx, client.Pods(namespace), pod, node.Name); err != nil {
			return fmt.Errorf("run pod %s/%s: %w", namespace, pod, err)
		}
	}
	return nil
}

func (s *Server) registerNode(ctx context.Context, nodes corev1client.NodeInterface, node Node) error {
	status := corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: s.address.Addr().String()}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{
			KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(s.address.Port())},
		},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "StandIn",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}},
	}
	if node.Websockets {
		status.DeclaredFeatures = []string{takesWebsockets}
	}
	_, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	current, err := nodes.Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	current.Status = status
	updated, err := nodes.UpdateStatus(ctx, current, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	if node.Websockets && len(updated.Status.DeclaredFeatures) == 0 {
		return fmt.Errorf("the server does not keep declared features, so it will not pass websockets on")
	}
	return nil
}

// ensureNamespace also makes the service account that each pod runs as; a kube-controller-manager would make it too.
func ensureNamespace(ctx context.Context, client corev1client.CoreV1Interface, name string) error {
	_, err := client.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = client.ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

func (s *Server) runPod(ctx context.Context, pods corev1client.PodInterface, name, node string) error {
	no := false
	_, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName:                     node,
			AutomountServiceAccountToken: &no,
			Containers:                   []corev1.Container{{Name: ContainerName, Image: "stand-in", Stdin: true}},
			// No controller evicts the pod because nobody renews the node's lease.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	current, err := pods.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if current.Spec.NodeName != node {
		return fmt.Errorf("it is there already, on node %q", current.Spec.NodeName)
	}
	now := metav1.Now()
	address := s.address.Addr().String()
	current.Status = corev1.PodStatus{
		Phase:  corev1.PodRunning,
		HostIP: address, HostIPs: []corev1.HostIP{{IP: address}},
		PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		StartTime: &now,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
		},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: ContainerName, Image: "stand-in", ContainerID: "standin://" + name, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}},
	}
	_, err = pods.UpdateStatus(ctx, current, metav1.UpdateOptions{})
	return err
}
