-- An apiserver's "I know no such API" as it says it: in plain text, or as a Status with this message and nothing about
-- an object. An answer about a missing object names it in its details, and is another sentence.
local guard = {}
do
  local MESSAGE = "the server could not find the requested resource"
  local MAX_LENGTH = 4096
  local JSON = '{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"' .. MESSAGE
    .. '","reason":"NotFound","details":{},"code":404}\n'
  local function squeezed(s) return (s:gsub("%s+", "")) end
  local KNOWN = { -- by content type: what the whole body is, and what is to be done to it before comparing
    ["text/plain"] = { "404 page not found\n", squeezed },
    ["application/json"] = { JSON, squeezed },
    ["application/yaml"] = { "apiVersion: v1\ncode: 404\ndetails: {}\nkind: Status\nmessage: " .. MESSAGE
      .. "\nmetadata: {}\nreason: NotFound\nstatus: Failure\n" },
    ["application/vnd.kubernetes.protobuf"] = { "k8s\0\n\12\n\2v1\18\6Status\18\92\n\6\n\0\18\0\26\0\18\7Failure\26\48" .. MESSAGE
      .. "\34\8NotFound*\n\n\0\18\0\26\0\40\0\50\0\48\148\3\26\0\34\0" },
    ["application/cbor"] = { "\217\217\247\168Dcode\25\1\148DkindFStatusFreasonHNotFoundFstatusGFailureGdetails\160GmessageX0"
      .. MESSAGE .. "Hmetadata\160JapiVersionBv1" },
  }
  for _, k in pairs(KNOWN) do
    k.fold = k[2] or function(s) return s end
    k.text, k.length = k.fold(k[1]), #k[1]
  end

  KNOWN["application/json"].indented = KNOWN["application/json"].length + 32 -- as for curl, without the last line feed

  local function unknownapi(h, headers, kind)
    local length = tonumber(headers:get("content-length") or "")
    local mediatype = headers:get("content-type")
    -- A server says nothing at all about an OpenAPI document that it does not have.
    if kind == "document" and not mediatype then return (length or 0) == 0 and h:body(false) == nil end
    local known = KNOWN[(mediatype or ""):lower():match("^%s*([^;%s]*)")]
    if not known or headers:get("content-encoding") or length and length > MAX_LENGTH then return false end
    local body = h:body(false)
    if body == nil then return length == known.length or length == known.indented end -- the answer to a HEAD
    if body:length() > MAX_LENGTH then return false end
    return known.fold(body:getBytes(0, body:length())) == known.text
  end

  -- What kind of API path this is whose 404 may be turned: "resource", "document" of OpenAPI, or nil. Proxied paths (pods/proxy
  -- and the like) carry other people's 404s.
  local function kindof(path)
    local key, subresource = classify(path)
    if subresource == "proxy" then return nil end
    path = pem.unescape(path:match("^[^?]*"))
    if path:find("^/openapi/v3/apis?/") then return "document" end
    if not path:find("^/apis?/") then return nil end
    if not key and (path .. "/"):find("/proxy/", 1, true) then return nil end
    return "resource"
  end

  -- Remembers until the answer comes that it is to be looked at.
  function guard.watch(h, path, method)
    local kind = kindof(path)
    if not kind then return end
    h:streamInfo():dynamicMetadata():set("xds-server", "guarded", kind)
    if method == "HEAD" then h:streamInfo():dynamicMetadata():set("xds-server", "head", true) end
  end

  -- Turns a server's "no such API" into a 503 in these words.
  function guard.turn(h, message)
    local m = h:streamInfo():dynamicMetadata():get("xds-server")
    local headers = h:headers()
    if not m or not m.guarded or not unknownapi(h, headers, m.guarded) then return end
    if not m.head then
      h:body(true):setBytes(string.format('{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"%s",'
        .. '"reason":"ServiceUnavailable","details":{"retryAfterSeconds":1},"code":503}\n', message))
    end
    headers = h:headers() -- the old object ended with reading the body
    if m.head then headers:remove("content-length") end
    headers:replace(":status", "503")
    headers:replace("content-type", "application/json")
    headers:replace("retry-after", "1")
  end
end
