package lab

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"

	"golang.org/x/sync/errgroup"
)

// Store writes objects into etcd as a kube-apiserver stores them, by key: a cluster that has had them for long, where
// making them through a server would take it too long.
func (l *Lab) Store(ctx context.Context, objects map[string][]byte) error {
	pki := l.Nodes[0].PKI
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "apiserver-etcd-client.crt"), filepath.Join(pki, "apiserver-etcd-client.key"))
	if err != nil {
		return fmt.Errorf("reading the certificate for etcd: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool(l.PKI.EtcdCA), Certificates: []tls.Certificate{pair}},
	}}
	defer client.CloseIdleConnections()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for key, object := range objects {
		g.Go(func() error {
			put, err := json.Marshal(map[string]any{"key": []byte(key), "value": object})
			if err != nil {
				return err
			}
			a, err := Call(ctx, client, http.MethodPost, l.etcdURL()+"/v3/kv/put", string(put), nil)
			if err := a.want(http.StatusOK, err); err != nil {
				return fmt.Errorf("writing %s into etcd: %w", key, err)
			}
			return nil
		})
	}
	return g.Wait()
}
