-- The peer listener's chain for xds-server's own reading of views: its certificate is the cluster CA's, and its name one
-- of those allowed. Everyone else is refused here; what it may read is the local server's authorization.
function envoy_on_request(h)
  local out = identity.of(h)
  if not out or out.deny or not out.user then return refuse(h, 401, "Unauthorized", "Unauthorized") end
  if not CONFIG.allowed[out.user] then return refuse(h, 403, "Forbidden", "this name may not use the peer listener") end
  local headers = h:headers()
  identity.write(headers, out)
  headers:replace("x-id-state", "fp")
end
