package streamer

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	upgradeproxy "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// handler serves a kubelet's paths as far as a kube-apiserver's log, exec, attach and portforward call them.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.counted("containerLogs", s.containerLogs))
	// A websocket asks by GET, SPDY by POST or, from older clients, GET.
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		mux.HandleFunc(method+" /exec/{namespace}/{pod}/{container}", s.counted("exec", s.exec))
		mux.HandleFunc(method+" /attach/{namespace}/{pod}/{container}", s.counted("attach", s.attach))
		mux.HandleFunc(method+" /portForward/{namespace}/{pod}", s.counted("portForward", s.portForward))
	}
	return mux
}

func (s *Server) counted(verb string, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.count(Request{Verb: verb, Upgrade: strings.ToLower(r.Header.Get("Upgrade"))})
		h(w, r)
	}
}

// containerLogs answers as many lines as tailLines says, 10 if it doesn't, and with follow one more at every interval,
// for ever. What a client could ask and this log can't do is refused, so that no test takes it for done.
func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	lines, follow := 10, false
	for name, values := range r.URL.Query() {
		var err error
		switch value := values[0]; {
		case name == "tailLines":
			lines, err = strconv.Atoi(value)
		case name == "follow":
			follow, err = strconv.ParseBool(value)
		case name == "stream" && value == "All":
		default:
			err = fmt.Errorf("the stand-in kubelet's logs can't do %s", name)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	if err := s.log.write(w, 1, lines); err != nil || flush() != nil || !follow {
		return
	}
	s.log.follow(r.Context(), w, flush, lines+1)
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	opts, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := s.streams.GetExec(&runtimeapi.ExecRequest{
		ContainerId: containerID(r), Cmd: r.URL.Query()["command"],
		Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, Tty: opts.TTY,
	})
	proxyCommand(w, r, opts, answer.GetUrl(), err)
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	opts, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := s.streams.GetAttach(&runtimeapi.AttachRequest{
		ContainerId: containerID(r),
		Stdin:       opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, Tty: opts.TTY,
	})
	proxyCommand(w, r, opts, answer.GetUrl(), err)
}

// proxyCommand hands an exec or attach on to the CRI streaming server as a kubelet does: version 5 of the websocket
// protocol, which can close stdin, is translated to SPDY, and anything else goes through as it came.
func proxyCommand(w http.ResponseWriter, r *http.Request, opts *remotecommand.Options, location string, err error) {
	to, ok := criURL(w, location, err)
	if !ok {
		return
	}
	if wsstream.IsWebSocketRequestWithStreamCloseProtocol(r) {
		proxy.NewStreamTranslatorHandler(to, nil, 0, proxy.Options{
			Stdin: opts.Stdin, Stdout: opts.Stdout, Stderr: opts.Stderr, Tty: opts.TTY,
		}).ServeHTTP(w, r)
		return
	}
	upgradeHandler(to).ServeHTTP(w, r)
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	tunnelled := wsstream.IsWebSocketRequestWithTunnelingProtocol(r)
	opts := &portforward.V4Options{}
	if !tunnelled {
		var err error
		if opts, err = portforward.NewV4Options(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	answer, err := s.streams.GetPortForward(&runtimeapi.PortForwardRequest{
		PodSandboxId: r.PathValue("namespace") + "/" + r.PathValue("pod"), Port: opts.Ports,
	})
	to, ok := criURL(w, answer.GetUrl(), err)
	if !ok {
		return
	}
	var handler http.Handler = upgradeHandler(to)
	if tunnelled {
		handler = proxy.NewTunnelingHandler(handler)
	}
	handler.ServeHTTP(w, r)
}

func containerID(r *http.Request) string {
	return r.PathValue("namespace") + "/" + r.PathValue("pod") + "/" + r.PathValue("container")
}

func criURL(w http.ResponseWriter, location string, err error) (*url.URL, bool) {
	if err != nil {
		streaming.WriteError(err, w) //nolint:errcheck // the client is gone then
		return nil, false
	}
	to, err := url.Parse(location)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return nil, false
	}
	return to, true
}

func upgradeHandler(to *url.URL) *upgradeproxy.UpgradeAwareHandler {
	return upgradeproxy.NewUpgradeAwareHandler(to, nil, false, true, failed{})
}

// failed answers when the CRI streaming server can't be asked.
type failed struct{}

func (failed) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusInternalServerError)
}
