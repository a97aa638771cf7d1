-- Whether a request is for a discovery document of the whole cluster: not if it asks for the local server's own, which
-- only the aggregated ones can be.
local function ofcluster(headers, document)
  local method = headers:get(":method")
  if method ~= "GET" and method ~= "HEAD" then return false end
  return document ~= "aggregated" or not nopeer(headers:get("accept") or "")
end

-- The front's chain: identity, then classification. x-id-state is written last: where it is missing, because this
-- script raised, the route table answers 500.
function envoy_on_request(h)
  local headers = h:headers()
  local out = identity.of(h)
  if out and out.deny then return refuse(h, 401, "Unauthorized", out.deny) end
  identity.write(headers, out)
  local key, subresource, document = classify(headers:get(":path") or "")
  if key then headers:replace("x-gvr", key) end
  if subresource then headers:replace("x-subresource", subresource) end
  if document then headers:replace("x-document", ofcluster(headers, document) and "cluster" or "local") end
  headers:replace("x-id-state", out and "fp" or "plain")
end
