-- The front's chain: identity, then classification. x-id-state is written last: where it is missing, because this
-- script raised, the route table answers 500.
function envoy_on_request(h)
  local headers = h:headers()
  local out = identity.of(h)
  if out and out.deny then return refuse(h, 401, "Unauthorized", out.deny) end
  identity.write(headers, out)
  local key, subresource = classify(headers:get(":path") or "")
  if key then headers:replace("x-gvr", key) end
  if subresource then headers:replace("x-subresource", subresource) end
  headers:replace("x-id-state", out and "fp" or "plain")
end
