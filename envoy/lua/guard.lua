-- An apiserver's "I know no such API" as it says it: in plain text, or as a Status with this message and nothing about
-- an object. An answer about a missing object names it in its details, and is another sentence.
local guard = {}
do
  local MESSAGE = "the server could not find the requested resource"
  local MAX_LENGTH = 4096
  local JSON = '{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"' .. MESSAGE
    .. '","reason":"NotFound","details":{},"code":404}'
  local function squeezed(s) return (s:gsub("%s+", "")) end
  local KNOWN = { -- by content type: what the whole body is, and what is to be done to it before comparing
    ["text/plain"] = { "404 page not found", squeezed },
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
    k.text = k.fold(k[1])
  end

  local function unknownapi(h, headers)
    local kind = (headers:get("content-type") or ""):lower():match("^%s*([^;%s]*)")
    local known = KNOWN[kind]
    local length = tonumber(headers:get("content-length") or "")
    if not known or headers:get("content-encoding") or length and length > MAX_LENGTH then return false end
    local body = h:body(false)
    -- The answer to a HEAD has no body; its length must do.
    if body == nil then return length == #known[1] + (kind == "text/plain" and 1 or 0) or length == #known[1] + 1 end
    if body:length() > MAX_LENGTH then return false end
    return known.fold(body:getBytes(0, body:length())) == known.text
  end

  -- Turns such an answer into a 503 in these words. The old headers object ends with reading the body.
  function guard.turn(h, message)
    local headers = h:headers()
    if headers:get(":status") ~= "404" or not unknownapi(h, headers) then return end
    local body = h:body(true)
    body:setBytes(string.format('{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"%s",'
      .. '"reason":"ServiceUnavailable","details":{"retryAfterSeconds":1},"code":503}\n', message))
    headers = h:headers()
    headers:replace(":status", "503")
    headers:replace("content-type", "application/json")
    headers:replace("retry-after", "1")
  end
end
