-- PEM, as Envoy hands over certificates (URL-encoded) and as files hold them.
local pem = {}
do
  local byte, char, floor = string.byte, string.char, math.floor
  local value = {}
  for i = 1, 64 do value[byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", i)] = i - 1 end

  local function decode(s)
    s = s:gsub("[ \t\r\n]", "")
    if #s % 4 ~= 0 or s:find("[^%w+/=]") or s:find("=[^=]") or s:find("===") then return nil end
    local out = {}
    for i = 1, #s, 4 do
      local a, b, c, d = byte(s, i, i + 3)
      local v = value[a] * 262144 + value[b] * 4096 + (value[c] or 0) * 64 + (value[d] or 0)
      local x, y, z = floor(v / 65536), floor(v / 256) % 256, v % 256
      if c == 61 then out[#out + 1] = char(x)
      elseif d == 61 then out[#out + 1] = char(x, y)
      else out[#out + 1] = char(x, y, z) end
    end
    return table.concat(out)
  end

  -- The DER of every CERTIFICATE block; the second result says how many blocks are not whole, or not base64.
  function pem.certificates(text)
    local out, _, begun = {}, text:gsub("%-%-%-%-%-BEGIN CERTIFICATE%-%-%-%-%-", "")
    for body in text:gmatch("%-%-%-%-%-BEGIN CERTIFICATE%-%-%-%-%-[ \t]*\r?\n(.-)%-%-%-%-%-END CERTIFICATE%-%-%-%-%-") do
      local der = decode(body)
      if der then out[#out + 1] = der end
    end
    return out, begun - #out
  end

  function pem.unescape(s)
    return (s:gsub("%%(%x%x)", function(h) return char(tonumber(h, 16)) end))
  end
end
