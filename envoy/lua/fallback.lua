-- The guard of the chain that serves while no route table is known, and of routes of an incomplete one: the local server's
-- "no such API" is then not the cluster's.
do
  local identify = envoy_on_request

  function envoy_on_request(h)
    local path, method = h:headers():get(":path") or "", h:headers():get(":method")
    if identify then identify(h) end
    guard.watch(h, path, method)
  end

  function envoy_on_response(h)
    if h:headers():get(":status") ~= "404" then return end
    guard.turn(h, "it is not known yet whether another API server serves this resource")
  end
end
