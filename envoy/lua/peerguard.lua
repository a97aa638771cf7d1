-- The guard of routes to peers: the table said that the peer serves this. Where it does not after all, the answer is
-- not that nobody does, and goes no further than one hop.
function envoy_on_request(h)
  local headers = h:headers()
  guard.watch(h, headers:get(":path") or "", headers:get(":method"))
end

function envoy_on_response(h)
  local headers = h:headers()
  if headers:get(":status") == "404" and headers:get("x-kubernetes-peer-proxied") == "true" then
    guard.turn(h, "the API server that was to serve this resource does not serve it")
  end
end
