-- The ASN.1 string types of a name, decoded to UTF-8 with the rules of Go's crypto/x509 (parseASN1String). An
-- unsupported type or an invalid value raises: Go then refuses the whole certificate.
local asn1string
do
  local byte, char, find = string.byte, string.char, string.find

  local function utf8valid(s)
    if not find(s, "[\128-\255]") then return true end
    local i, n = 1, #s
    while i <= n do
      local c = byte(s, i)
      if c < 0x80 then
        i = i + 1
      else
        local len, lo, hi = nil, 0x80, 0xBF
        if c >= 0xC2 and c <= 0xDF then len = 1
        elseif c >= 0xE0 and c <= 0xEF then
          len = 2
          if c == 0xE0 then lo = 0xA0 elseif c == 0xED then hi = 0x9F end
        elseif c >= 0xF0 and c <= 0xF4 then
          len = 3
          if c == 0xF0 then lo = 0x90 elseif c == 0xF4 then hi = 0x8F end
        else
          return false
        end
        if i + len > n then return false end
        local b = byte(s, i + 1)
        if b < lo or b > hi then return false end
        for k = i + 2, i + len do
          b = byte(s, k)
          if b < 0x80 or b > 0xBF then return false end
        end
        i = i + len + 1
      end
    end
    return true
  end

  local function utf8char(p) -- below 0x10000
    if p < 0x80 then return char(p) end
    if p < 0x800 then return char(0xC0 + math.floor(p / 64), 0x80 + p % 64) end
    return char(0xE0 + math.floor(p / 4096), 0x80 + math.floor(p / 64) % 64, 0x80 + p % 64)
  end

  local decode = {
    [12] = function(s) -- UTF8String
      if not utf8valid(s) then error("invalid UTF8String", 0) end
      return s
    end,
    [18] = function(s) -- NumericString
      if find(s, "[^0-9 ]") then error("invalid NumericString", 0) end
      return s
    end,
    [19] = function(s) -- PrintableString, with Go's additions * and &
      if find(s, "[^a-zA-Z0-9'()+,%-./ :=?*&]") then error("invalid PrintableString", 0) end
      return s
    end,
    [20] = function(s) -- T61String, taken as Latin-1
      return (s:gsub("[\128-\255]", function(c) return utf8char(byte(c)) end))
    end,
    [22] = function(s) -- IA5String
      if find(s, "[\128-\255]") then error("invalid IA5String", 0) end
      return s
    end,
    [30] = function(s) -- BMPString
      local n = #s
      if n % 2 ~= 0 then error("invalid BMPString", 0) end
      if n >= 2 and byte(s, n) == 0 and byte(s, n - 1) == 0 then n = n - 2 end
      local out = {}
      for k = 1, n, 2 do
        local p = byte(s, k) * 256 + byte(s, k + 1)
        if p >= 0xFFFE or (p >= 0xFDD0 and p <= 0xFDEF) or (p >= 0xD800 and p <= 0xDFFF) then
          error("invalid BMPString", 0)
        end
        out[#out + 1] = utf8char(p)
      end
      return table.concat(out)
    end,
  }

  function asn1string(tag, s)
    local f = decode[tag]
    if not f then error("unsupported string type", 0) end
    return f(s)
  end
end
