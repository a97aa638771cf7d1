-- Whether an Accept header asks for the local server's own aggregated document (profile=nopeer), in the clause that a
-- kube-apiserver takes: the first by weight that asks for aggregated discovery in a media type that it has. Where its
-- parser (goautoneg) would have to be followed too far the answer is no: the discovery filter has that parser and decides.
local nopeer
do
  local match = string.match
  local media = {
    ["application/json"] = true, ["application/*"] = true, ["*/*"] = true, ["application/yaml"] = true,
    ["application/vnd.kubernetes.protobuf"] = true, ["application/cbor"] = true,
  }
  local versions = {v2 = true, v2beta1 = true}
  local function trimmed(s) return match(s, "^ *(.-) *$") end

  -- A clause as goautoneg reads it; false for one that it leaves out, nil for one that is too odd.
  local function parse(text)
    local name, rest = match(text, "^([^;]*);?(.*)$")
    local kind, subtype = match(name, "^([^/]*)/([^/]+)/?$")
    kind = trimmed(kind or match(name, "^([^/]*)/?$") or "/")
    if not subtype and kind ~= "*" then return false end
    local c = {kind = kind, subtype = trimmed(subtype or "*"), q = 1, params = {}}
    for param in rest:gmatch("[^;]+") do
      if param:find("==", 1, true) then return nil end
      local key, value = match(param, "^([^=]*)=([^=]+)=?$")
      key = key and trimmed(key)
      if key == "q" then
        if not match(value, "^%d%.?%d?%d?%d?$") then return nil end
        c.q = tonumber(value)
      elseif key then
        c.params[key] = trimmed(value)
      end
    end
    return c
  end

  -- Not an order, but goautoneg's.
  local function before(a, b)
    return a.q > b.q or a.kind ~= "*" and b.kind == "*" or a.subtype ~= "*" and b.subtype == "*"
  end

  local function aggregated(c)
    local p, name = c.params, c.kind .. "/" .. c.subtype
    return media[name] and p.g == "apidiscovery.k8s.io" and versions[p.v] and p.as == "APIGroupDiscoveryList"
      and (p.sv or "") == "" and ((p.stream or "") == "" or p.stream == "watch" and name ~= "application/yaml")
  end

  function nopeer(accept)
    if #accept > 1024 or not accept:find("nopeer", 1, true) then return false end
    local clauses = {}
    for text in accept:gmatch("[^,]+") do
      local c = parse(trimmed(text))
      if c == nil then return false end
      if c then
        local i = #clauses + 1
        if i > 12 then return false end -- Go sorts more in another way
        while i > 1 and before(c, clauses[i - 1]) do
          clauses[i], i = clauses[i - 1], i - 1
        end
        clauses[i] = c
      end
    end
    for _, c in ipairs(clauses) do
      if aggregated(c) then return c.params.profile == "nopeer" end
    end
    return false
  end
end
