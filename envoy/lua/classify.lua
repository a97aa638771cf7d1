-- What a path asks for, as Kubernetes' RequestInfoFactory has it on the decoded path: the key of the route table
-- ("group/version/resource", "group/version" or "group", the core group being empty) and the subresource, if any.
-- Returns nothing for whatever is not plain: such requests go the default way and meet the 404 guard.
local classify
do
  local match, byte, find = string.match, string.byte, string.find

  -- The segment at pos, and where the next one starts (nil at the end; one trailing slash is an end too).
  local function segment(path, pos)
    local s, after = match(path, "^([^/]+)()", pos)
    if not s then return nil end
    if after < #path then return s, after + 1 end
    return s, nil
  end
  local function plain(s) return not find(s, "[^%l%d%-]") end
  -- A name may be escaped; not so that it becomes several segments, or that Go cannot decode it.
  local function name(s)
    if not find(s, "%", 1, true) then return true end
    local rest, slash = s:gsub("%%(%x%x)", function(h) return h:lower() == "2f" and "%" or "" end)
    return slash > 0 and not find(rest, "%", 1, true)
  end

  local function document(path)
    local gv = match(path, "^/openapi/v3/apis/([%l%d%.%-]+/[%w%-]+)/?$")
    if gv then return gv end
    local v = match(path, "^/openapi/v3/api/([%w%-]+)/?$")
    if v then return "/" .. v end
    return match(path, "^/apis/([%l%d%.%-]+)/?$")
  end

  function classify(path)
    path = match(path, "^[^?]*")
    local group, version, pos = match(path, "^/apis/([%l%d%.%-]+)/([%w%-]+)()")
    if not group then
      version, pos = match(path, "^/api/([%w%-]+)()")
      if not version then return document(path) end
      group = ""
    end
    local gv = group .. "/" .. version
    if pos >= #path then
      if pos > #path or byte(path, pos) == 47 then return gv end
      return nil
    end
    if byte(path, pos) ~= 47 then return nil end

    local first, at = segment(path, pos + 1)
    if first == "proxy" then return nil end
    if first == "watch" then
      if not at then return nil end
      first, at = segment(path, at)
    end
    if not first or not plain(first) then return nil end
    local resource, sub = first, nil
    if at then
      local second, third
      second, at = segment(path, at)
      if not second or not name(second) then return nil end
      if at then
        third, at = segment(path, at)
        if not third or not plain(third) then return nil end
        if first == "namespaces" and third ~= "status" and third ~= "finalize" then
          resource = third
          if at then
            second, at = segment(path, at)
            if not second or not name(second) then return nil end
            if at then
              sub = segment(path, at)
              if not sub or not plain(sub) then return nil end
            end
          end
        else
          sub = third
        end
      end
    end
    return gv .. "/" .. resource, sub
  end
end
