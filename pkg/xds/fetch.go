package xds

import (
	"context"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// fetcher answers the unary Fetch methods. go-control-plane's own refuses a question whose answer has not changed with
// an error that only its HTTP gateway understands.
type fetcher struct{ cache cache.ConfigFetcher }

func (f fetcher) Fetch(ctx context.Context, req *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
	resp, err := f.cache.Fetch(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp.GetDiscoveryResponse()
}
