package extproc

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect serves a source and returns an Envoy's stream of node old.
func connect(t *testing.T, source Source) extprocv3.ExternalProcessor_ProcessClient {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	New(source, zap.NewNop(), prometheus.NewRegistry()).Register(server)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	c, err := grpc.NewClient("passthrough:xds-server", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	stream, err := extprocv3.NewExternalProcessorClient(c).Process(metadata.AppendToOutgoingContext(t.Context(), NodeMetadata, "old"))
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func asEnvoy(pairs ...string) *extprocv3.HttpHeaders {
	h := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		h.Headers = append(h.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return &extprocv3.HttpHeaders{Headers: h}
}

func ask(t *testing.T, s extprocv3.ExternalProcessor_ProcessClient, r *extprocv3.ProcessingRequest) *extprocv3.ProcessingResponse {
	t.Helper()
	if err := s.Send(r); err != nil {
		t.Fatal(err)
	}
	out, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAnEnvoyGetsTheMergedDocumentInPlaceOfAnEmpty304(t *testing.T) {
	s := connect(t, &fakeSource{now: upgrade()})
	ask(t, s, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: asEnvoy(":method", "GET", ":path", "/apis", "accept", aggregated),
	}})
	out := ask(t, s, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: asEnvoy(":status", "304", "etag", `"o"`),
	}}).GetResponseHeaders().GetResponse()
	if out.GetStatus() != extprocv3.CommonResponse_CONTINUE_AND_REPLACE || len(out.GetBodyMutation().GetBody()) == 0 {
		t.Fatalf("the body is not replaced: %v", out)
	}
	got := map[string]string{}
	for _, h := range out.GetHeaderMutation().GetSetHeaders() {
		got[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	if got[":status"] != "200" || got["Etag"] == "" || got["X-Kubernetes-Discovery"] != "merged" {
		t.Errorf("headers: %v", got)
	}
}

func TestAnXDSServerThatKnowsNothingLeavesItToAnother(t *testing.T) {
	s := connect(t, &fakeSource{})
	if err := s.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: asEnvoy(":method", "GET", ":path", "/apis"),
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("it answered %v, want Unavailable", err)
	}
}

func TestAnythingButHeadersIsRefused(t *testing.T) {
	s := connect(t, &fakeSource{now: upgrade()})
	if err := s.Send(&extprocv3.ProcessingRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("it answered %v, want InvalidArgument", err)
	}
}

// FuzzExchange sends what any client and any server might: nothing may panic, and a refusal stays one.
func FuzzExchange(f *testing.F) {
	set := upgrade()
	f.Add("GET", "/apis", aggregated, `"a", W/"b", *`, "gzip;q=0.5, br", "200", `"o"`)
	f.Add("GET", "/apis/storage/v1", "application/cbor,*/*", "", "", "404", "")
	f.Add("HEAD", "/openapi/v3/apis/apps/v1?hash=%zz", "*/*;q=0.1,application/yaml", `""`, "", "404", "")
	f.Fuzz(func(t *testing.T, method, path, accept, match, encoding, local, etag string) {
		e := exchange{source: &fakeSource{now: set}, node: "old", offersCBOR: new(atomic.Bool)}
		e.request(headers(asEnvoy(":method", method, ":path", path, "accept", accept, "if-none-match", match, "accept-encoding", encoding)))
		a := e.response(t.Context(), headers(asEnvoy(":status", local, "etag", etag)))
		if a.status == 200 && local != "200" && local != "304" && local != "404" && local != "301" {
			t.Errorf("the local server's %q became 200", local)
		}
		a.response(e.head())
	})
}
