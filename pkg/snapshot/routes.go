package snapshot

import (
	"slices"
	"time"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	xdsmatcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	previousprioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"xds-server/envoy"
	"xds-server/pkg/routing"
)

const (
	// guardFilter is the bootstrap's filter that runs one of two scripts, if the route names one, on answers that say
	// that there is no such API: from a peer that the table says serves it, or while not every server was read.
	guardFilter  = "guard"
	peerGuard    = "peer"
	unknownGuard = "unknown"

	// discoveryFilter is the bootstrap's ext_proc filter, which skips everything but routes that turn it on.
	discoveryFilter = "discovery"

	gvrHeader         = "x-gvr"
	subresourceHeader = "x-subresource"
	// documentHeader is on requests for discovery documents: the cluster's, or the local server's own.
	documentHeader  = "x-document"
	clusterDocument = "cluster"
	localDocument   = "local"
	// discoveryHeader tells a client whose document it was given.
	discoveryHeader = "x-kubernetes-discovery"
	// undeliveredHeader is set by a peer listener on answers to requests that never reached its apiserver.
	undeliveredHeader = "x-peer-undelivered"

	// repeatableBody is how large a body is kept until the request has an answer, so that it can go to another server: more
	// than an apiserver reads of any (3 MiB).
	repeatableBody = 4 << 20

	notEvaluated = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the identity of this request was not evaluated","reason":"InternalError","code":500}` + "\n"
)

// routeConfiguration is the front's routes: nested exact maps, so that a request costs four look-ups whatever the
// table's size. First how the identity was evaluated (missing: 500, so that a failed filter lets nobody through), then
// whether it is for a document, then the group, version and resource, then, where only that differs, the subresource.
func routeConfiguration(table routing.Table, known map[string]Peer) (*routev3.RouteConfiguration, error) {
	states := map[string]*xdsmatcherv3.Matcher_OnMatch{}
	for _, v := range variants {
		m, err := byDocument(table, known, v)
		if err != nil {
			return nil, err
		}
		states[v] = m
	}
	refused, err := refuse()
	if err != nil {
		return nil, err
	}
	matcher, err := exactMap(StateHeader, states, refused)
	if err != nil {
		return nil, err
	}
	retry, err := retryPolicy(false)
	if err != nil {
		return nil, err
	}
	return &routev3.RouteConfiguration{
		Name:                   RouteName,
		RequestHeadersToRemove: envoy.RemovedHeaders,
		// Removed before it is added: what a backend says of the hop is not so.
		ResponseHeadersToRemove: []string{ProxiedHeader, undeliveredHeader},
		ResponseHeadersToAdd: []*corev3.HeaderValueOption{{
			Header:       &corev3.HeaderValue{Key: ProxiedHeader, Value: "%UPSTREAM_METADATA(" + metadataKey + ":peer)%"},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}},
		VirtualHosts: []*routev3.VirtualHost{{
			Name: "all", Domains: []string{"*"}, RetryPolicy: retry, Matcher: matcher.GetMatcher(),
			RequestBodyBufferLimit: wrapperspb.UInt64(repeatableBody),
		}},
	}, nil
}

// byDocument tells requests for documents from all others. They go the same ways, but while some server shows another
// document than the cluster's, that goes to the local server and is merged on its way back, unless all that the local
// server can say about it is an error.
func byDocument(table routing.Table, known map[string]Peer, variant string) (*xdsmatcherv3.Matcher_OnMatch, error) {
	local, err := byResource(documents(table), known, variant, localDocument)
	if err != nil {
		return nil, err
	}
	cluster := local
	if table.Merged {
		// Whoever serves what a document is about, the local server says who may read it: a peer may be down, and the filter
		// knows what it had.
		merged := table
		merged.Entries = slices.DeleteFunc(slices.Clone(table.Entries), func(e routing.Entry) bool { return !slices.Contains(table.Stale, e.Key) })
		if cluster, err = byResource(merged, known, variant, clusterDocument); err != nil {
			return nil, err
		}
	}
	others, err := byResource(table, known, variant, "")
	if err != nil {
		return nil, err
	}
	return exactMap(documentHeader, map[string]*xdsmatcherv3.Matcher_OnMatch{localDocument: local, clusterDocument: cluster}, others)
}

// documents is the table of documents alone.
func documents(table routing.Table) routing.Table {
	table.Entries = slices.DeleteFunc(slices.Clone(table.Entries), func(e routing.Entry) bool { return e.Key.Resource != "" })
	return table
}

// byResource is the table of one variant, for resources or for one kind of documents.
func byResource(table routing.Table, known map[string]Peer, variant, document string) (*xdsmatcherv3.Matcher_OnMatch, error) {
	action := func(set routing.Set, guard string) (*xdsmatcherv3.Matcher_OnMatch, error) {
		return action(set, variant, guard, document, throughListeners(set, known))
	}
	otherwise, err := action(table.Default, guardOf(table, table.Default))
	if err != nil {
		return nil, err
	}
	subresources := map[routing.Key]map[string]*xdsmatcherv3.Matcher_OnMatch{}
	resources := map[routing.Key]routing.Set{}
	for _, e := range table.Entries {
		if e.Key.Subresource == "" {
			resources[e.Key] = e.Set
			continue
		}
		a, err := action(e.Set, guardOf(table, e.Set))
		if err != nil {
			return nil, err
		}
		parent := e.Key.Parent()
		if subresources[parent] == nil {
			subresources[parent] = map[string]*xdsmatcherv3.Matcher_OnMatch{}
			if _, ok := resources[parent]; !ok {
				resources[parent] = table.Lookup(parent)
			}
		}
		subresources[parent][e.Key.Subresource] = a
	}
	paths := map[string]*xdsmatcherv3.Matcher_OnMatch{}
	for key, set := range resources {
		a, err := action(set, guardOf(table, set))
		if err != nil {
			return nil, err
		}
		if key.Resource != "" && guardOf(table, set) == peerGuard && table.Complete {
			unguarded, err := action(set, "")
			if err != nil {
				return nil, err
			}
			if a, err = unknownSubresource(a, unguarded); err != nil {
				return nil, err
			}
		}
		if subs := subresources[key]; subs != nil {
			if a, err = exactMap(subresourceHeader, subs, a); err != nil {
				return nil, err
			}
		}
		paths[key.Path()] = a
	}
	if len(paths) == 0 {
		return otherwise, nil
	}
	return exactMap(gvrHeader, paths, otherwise)
}

// guardOf is the guard of the answers from a set, or none: a complete table has confirmed the local server's 404.
func guardOf(table routing.Table, set routing.Set) string {
	switch {
	case !set.Local:
		return peerGuard
	case !table.Complete:
		return unknownGuard
	default:
		return ""
	}
}

// unknownSubresource sends requests for a subresource that is in no view to the same peers, and takes their word for it
// that it does not exist, which is confirmed.
func unknownSubresource(otherwise, unguarded *xdsmatcherv3.Matcher_OnMatch) (*xdsmatcherv3.Matcher_OnMatch, error) {
	input, err := packed(&matcherv3.HttpRequestHeaderMatchInput{HeaderName: subresourceHeader})
	if err != nil {
		return nil, err
	}
	present := &xdsmatcherv3.StringMatcher{MatchPattern: &xdsmatcherv3.StringMatcher_SafeRegex{SafeRegex: &xdsmatcherv3.RegexMatcher{
		Regex: ".+", EngineType: &xdsmatcherv3.RegexMatcher_GoogleRe2{GoogleRe2: &xdsmatcherv3.RegexMatcher_GoogleRE2{}},
	}}}
	return &xdsmatcherv3.Matcher_OnMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Matcher{Matcher: &xdsmatcherv3.Matcher{
		MatcherType: &xdsmatcherv3.Matcher_MatcherList_{MatcherList: &xdsmatcherv3.Matcher_MatcherList{
			Matchers: []*xdsmatcherv3.Matcher_MatcherList_FieldMatcher{{
				Predicate: &xdsmatcherv3.Matcher_MatcherList_Predicate{MatchType: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_{
					SinglePredicate: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate{
						Input:   &xdscorev3.TypedExtensionConfig{Name: subresourceHeader, TypedConfig: input},
						Matcher: &xdsmatcherv3.Matcher_MatcherList_Predicate_SinglePredicate_ValueMatch{ValueMatch: present},
					},
				}},
				OnMatch: unguarded,
			}},
		}},
		OnNoMatch: otherwise,
	}}}, nil
}

// exactMap looks a header's value up; a value that is not in the map takes otherwise.
func exactMap(header string, values map[string]*xdsmatcherv3.Matcher_OnMatch, otherwise *xdsmatcherv3.Matcher_OnMatch) (*xdsmatcherv3.Matcher_OnMatch, error) {
	input, err := packed(&matcherv3.HttpRequestHeaderMatchInput{HeaderName: header})
	if err != nil {
		return nil, err
	}
	return &xdsmatcherv3.Matcher_OnMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Matcher{Matcher: &xdsmatcherv3.Matcher{
		MatcherType: &xdsmatcherv3.Matcher_MatcherTree_{MatcherTree: &xdsmatcherv3.Matcher_MatcherTree{
			Input: &xdscorev3.TypedExtensionConfig{Name: header, TypedConfig: input},
			TreeType: &xdsmatcherv3.Matcher_MatcherTree_ExactMatchMap{
				ExactMatchMap: &xdsmatcherv3.Matcher_MatcherTree_MatchMap{Map: values},
			},
		}},
		OnNoMatch: otherwise,
	}}}, nil
}

// throughListeners says whether every server of a set is reached through its Envoy's peer listener. Only such a listener
// may say that a request was not delivered: an apiserver passes on whatever headers its backends make up.
func throughListeners(set routing.Set, known map[string]Peer) bool {
	return !set.Local && !slices.ContainsFunc(set.Peers, func(name string) bool { return known[name].Direct })
}

// action sends to a set, without any time limit: watches, logs and exec live as long as they like.
func action(set routing.Set, variant, guard, document string, listeners bool) (*xdsmatcherv3.Matcher_OnMatch, error) {
	var retry *routev3.RetryPolicy // the virtual host's
	if listeners {
		var err error
		if retry, err = retryPolicy(true); err != nil {
			return nil, err
		}
	}
	perFilter := map[string]*anypb.Any{}
	if guard != "" {
		config, err := packed(&luav3.LuaPerRoute{Override: &luav3.LuaPerRoute_Name{Name: guard}})
		if err != nil {
			return nil, err
		}
		perFilter[guardFilter] = config
	}
	var headers []*corev3.HeaderValueOption
	switch document {
	case clusterDocument:
		config, err := packed(&extprocv3.ExtProcPerRoute{Override: &extprocv3.ExtProcPerRoute_Overrides{Overrides: &extprocv3.ExtProcOverrides{
			ProcessingMode: &extprocv3.ProcessingMode{
				RequestHeaderMode: extprocv3.ProcessingMode_SEND, ResponseHeaderMode: extprocv3.ProcessingMode_SEND,
				RequestTrailerMode: extprocv3.ProcessingMode_SKIP, ResponseTrailerMode: extprocv3.ProcessingMode_SKIP,
			},
		}}})
		if err != nil {
			return nil, err
		}
		perFilter[discoveryFilter] = config
	case localDocument:
		headers = []*corev3.HeaderValueOption{{
			Header:       &corev3.HeaderValue{Key: discoveryHeader, Value: "local"},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}}
	}
	return onMatch(&routev3.Route{
		ResponseHeadersToAdd: headers,
		TypedPerFilterConfig: perFilter,
		Name:                 set.ID(),
		Match:                &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: clusterOf(set, variant)},
			Timeout:          durationpb.New(0), IdleTimeout: durationpb.New(0),
			RetryPolicy: retry,
		}},
	})
}

func refuse() (*xdsmatcherv3.Matcher_OnMatch, error) {
	return onMatch(&routev3.Route{
		Name:  "identity-not-evaluated",
		Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
			Status: 500,
			Body:   &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: notEvaluated}},
		}},
		ResponseHeadersToAdd: []*corev3.HeaderValueOption{{
			Header:       &corev3.HeaderValue{Key: "content-type", Value: "application/json"},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}},
	})
}

func onMatch(r proto.Message) (*xdsmatcherv3.Matcher_OnMatch, error) {
	a, err := packed(r)
	if err != nil {
		return nil, err
	}
	return &xdsmatcherv3.Matcher_OnMatch{OnMatch: &xdsmatcherv3.Matcher_OnMatch_Action{
		Action: &xdscorev3.TypedExtensionConfig{Name: "route", TypedConfig: a},
	}}, nil
}

// retryPolicy repeats only what was not delivered: the next server of the set, then the next priority. Where listeners
// is true, a peer listener's word that it was not counts too.
func retryPolicy(listeners bool) (*routev3.RetryPolicy, error) {
	hosts, err := packed(&previoushostsv3.PreviousHostsPredicate{})
	if err != nil {
		return nil, err
	}
	priorities, err := packed(&previousprioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: 1})
	if err != nil {
		return nil, err
	}
	p := &routev3.RetryPolicy{
		RetryOn: "connect-failure,refused-stream,reset-before-request",
		// An apiserver closes an HTTP/2 connection after each request that it does not know the sender of, and other requests
		// on it with that: a client that sends some at once needs more than one other try.
		NumRetries: wrapperspb.UInt32(5),
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{
			BaseInterval: durationpb.New(25 * time.Millisecond), MaxInterval: durationpb.New(250 * time.Millisecond),
		},
		RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{
			Name:       "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: hosts},
		}},
		HostSelectionRetryMaxAttempts: 3,
		RetryPriority: &routev3.RetryPolicy_RetryPriority{
			Name:       "envoy.retry_priorities.previous_priorities",
			ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{TypedConfig: priorities},
		},
	}
	if listeners {
		p.RetryOn += ",retriable-headers"
		p.RetriableHeaders = []*routev3.HeaderMatcher{{
			Name: undeliveredHeader, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
		}}
	}
	return p, nil
}
