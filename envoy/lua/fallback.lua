-- The guard of the chain that serves while no route table is known: the local server's "no such API" is then not the
-- cluster's. Proxied paths (pods/proxy and the like) carry other people's 404s and are left alone.
do
  local identify = envoy_on_request
  local find, lower = string.find, string.lower

  local function guarded(path)
    local _, subresource = classify(path)
    if subresource == "proxy" then return false end
    if subresource then return true end
    path = pem.unescape(path:match("^[^?]*"))
    if find(path .. "/", "/proxy/", 1, true) and classify(path) == nil then return false end
    return find(path, "^/apis?/") ~= nil or find(path, "^/openapi/v3/apis?/") ~= nil
  end

  function envoy_on_request(h)
    local path = h:headers():get(":path") or ""
    identify(h)
    if guarded(path) then h:streamInfo():dynamicMetadata():set("xds-server", "guarded", true) end
  end

  function envoy_on_response(h)
    if h:headers():get(":status") ~= "404" then return end
    local m = h:streamInfo():dynamicMetadata():get("xds-server")
    if m and m.guarded then guard.turn(h, "it is not known yet whether another API server serves this resource") end
  end
end
