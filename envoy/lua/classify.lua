-- What a path asks for, as Kubernetes' RequestInfoFactory has it on the decoded path: the key of the route table
-- ("group/version/resource", "group/version" or "group", the core group being empty) and the subresource, if any.
-- Returns nothing for what no apiserver serves, or what is too odd: that goes the default way and meets the 404 guard.
-- The third result is "aggregated" for a document of discovery that comes in that form too, and "plain" for any other one
-- of discovery or OpenAPI, also where it is no group's or version's own.
local classify
do
  local match, byte, find, sub = string.match, string.byte, string.find, string.sub

  -- The segment at pos, and where the next one starts, or nil.
  local function segment(path, pos)
    local slash = find(path, "/", pos, true)
    if slash then return sub(path, pos, slash - 1), slash + 1 end
    return sub(path, pos), nil
  end
  local function plain(s) return s ~= "" and not find(s, "[^%l%d%-]") end

  local function document(path)
    local gv = match(path, "^/openapi/v3/apis/([%l%d%.%-]+/[%l%d%-]+)$")
    if gv then return gv end
    local v = match(path, "^/openapi/v3/api/([%l%d%-]+)$")
    if v then return "/" .. v end
  end

  function classify(path)
    path = match(path, "^[^?]*")
    if find(path, "%", 1, true) then
      if find(path:gsub("%%%x%x", ""), "%", 1, true) then return nil end -- Go refuses it
      path = path:gsub("%%(%x%x)", function(h) return string.char(tonumber(h, 16)) end)
    end
    local key = document(path)
    if key or find(path, "^/openapi/v[23]$") or find(path, "^/openapi/v3/") then return key, nil, "plain" end
    -- Trailing slashes go one by one: a pattern would take quadratic time over a path of slashes.
    local last = #path
    while last > 0 and byte(path, last) == 47 do last = last - 1 end
    local slashes = #path - last
    path = sub(path, 1, last)

    local group, version, pos = match(path, "^/apis/([%l%d%.%-]+)/([%l%d%-]+)()")
    if not group then
      group, version, pos = "", match(path, "^/api/([%l%d%-]+)()")
      if not version then
        -- A kube-apiserver takes /api/ for /api, and has the legacy form alone at /apis/.
        if path == "/apis" then return nil, nil, slashes == 0 and "aggregated" or "plain" end
        if path == "/api" then return nil, nil, slashes < 2 and "aggregated" or "plain" end
        group = match(path, "^/apis/([%l%d%.%-]+)$")
        return group, nil, group and "plain"
      end
    end
    local gv = group .. "/" .. version
    if pos > #path then return gv, nil, "plain" end
    if byte(path, pos) ~= 47 then return nil end

    local resource, at = segment(path, pos + 1)
    local proxied = resource == "proxy"
    if proxied or resource == "watch" then -- the old verbs before a path
      if not at then return nil end
      resource, at = segment(path, at)
    end
    local subresource
    if at then
      local _, third
      _, at = segment(path, at)
      if at then
        third, at = segment(path, at)
        if resource == "namespaces" and third ~= "status" and third ~= "finalize" then
          resource = third
          if at then _, at = segment(path, at) end
          if at then subresource = segment(path, at) end
        else
          subresource = third
        end
      end
    end
    if not plain(resource) then return nil end
    if proxied or subresource == "" then subresource = nil end
    -- Aggregated APIs have subresources of any name (metrics): those are served where their resource is.
    if subresource and not plain(subresource) then subresource = nil end
    return gv .. "/" .. resource, subresource
  end
end
