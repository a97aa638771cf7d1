-- DER as Go's cryptobyte reads it. Every function takes the string and inclusive byte bounds and raises an error on
-- anything that cryptobyte would not read: the callers (x509.lua) run under one pcall and refuse the certificate.
local der = {}
do
  local byte, sub = string.byte, string.sub

  der.SEQUENCE, der.SET, der.OID, der.INTEGER = 0x30, 0x31, 0x06, 0x02
  der.BOOLEAN, der.BITS, der.OCTETS = 0x01, 0x03, 0x04

  -- One element starting at i, not reaching beyond e: tag, first and last byte of its contents, start of the next one.
  function der.any(s, i, e)
    if e - i < 1 then error("truncated DER", 0) end
    local tag, len = byte(s, i, i + 1)
    if tag % 32 == 31 then error("high DER tag", 0) end
    local first = i + 2
    if len >= 128 then
      local n = len - 128
      if n == 0 or n > 4 or first + n - 1 > e then error("bad DER length", 0) end
      if byte(s, first) == 0 then error("DER length not minimal", 0) end
      len = 0
      for k = first, first + n - 1 do len = len * 256 + byte(s, k) end
      if len < 128 then error("DER length not minimal", 0) end
      first = first + n
    end
    local last = first + len - 1
    if last > e then error("truncated DER", 0) end
    return tag, first, last, last + 1
  end

  -- One element that must have this tag.
  function der.get(s, i, e, tag)
    local t, first, last, after = der.any(s, i, e)
    if t ~= tag then error("unexpected DER tag", 0) end
    return first, last, after
  end

  -- Whether the next element has this tag (cryptobyte's PeekASN1Tag: looks at one byte only).
  function der.peek(s, i, e, tag)
    return i <= e and byte(s, i) == tag
  end

  -- An object identifier's contents; equal OIDs have equal contents because only minimal ones are read.
  function der.oid(s, i, e)
    local first, last, after = der.get(s, i, e, der.OID)
    if last < first then error("empty OID", 0) end
    local v, n = 0, 0
    for k = first, last do
      local b = byte(s, k)
      if n == 0 and b == 0x80 then error("OID not minimal", 0) end
      if n == 5 or v >= 16777216 then error("OID too large", 0) end
      v, n = v * 128 + b % 128, n + 1
      if b < 128 then v, n = 0, 0 end
    end
    if n ~= 0 then error("truncated OID", 0) end
    return sub(s, first, last), after
  end

  -- The contents of a dotted OID, to compare with what der.oid returns.
  function der.oidbytes(dotted)
    local n, out = {}, {}
    for d in dotted:gmatch("%d+") do n[#n + 1] = tonumber(d) end
    n[2] = n[1] * 40 + n[2]
    for k = 2, #n do
      local v, s = n[k], string.char(n[k] % 128)
      while v >= 128 do
        v = math.floor(v / 128)
        s = string.char(v % 128 + 128) .. s
      end
      out[#out + 1] = s
    end
    return table.concat(out)
  end

  -- An INTEGER's contents, minimal; with another tag when given.
  function der.int(s, i, e, tag)
    local first, last, after = der.get(s, i, e, tag or der.INTEGER)
    if last < first then error("empty INTEGER", 0) end
    if last > first then
      local a, b = byte(s, first, first + 1)
      if (a == 0 and b < 128) or (a == 255 and b >= 128) then error("INTEGER not minimal", 0) end
    end
    return first, last, after
  end

  function der.negative(s, first) return byte(s, first) >= 128 end

  -- A non-negative INTEGER's value. Exact only below 2^53; larger ones are compared with small numbers only.
  function der.number(s, first, last)
    local v = 0
    for k = first, last do v = v * 256 + byte(s, k) end
    return v
  end

  function der.bool(s, i, e)
    local first, last, after = der.get(s, i, e, der.BOOLEAN)
    local b = byte(s, first)
    if last ~= first or (b ~= 0 and b ~= 255) then error("bad BOOLEAN", 0) end
    return b == 255, after
  end

  -- A BIT STRING: first and last byte of the bits, and the number of unused bits.
  function der.bits(s, i, e)
    local first, last, after = der.get(s, i, e, der.BITS)
    if last < first then error("empty BIT STRING", 0) end
    local pad = byte(s, first)
    if pad > 7 or (first == last and pad ~= 0) or (last > first and byte(s, last) % 2 ^ pad ~= 0) then
      error("bad BIT STRING", 0)
    end
    return first + 1, last, pad, after
  end

  -- Whole days since 1970-01-01 of a proleptic Gregorian date.
  local function days(y, m, d)
    if m <= 2 then y = y - 1 end
    local era = math.floor(y / 400)
    local yoe = y - era * 400
    local doy = math.floor((153 * (m + (m > 2 and -3 or 9)) + 2) / 5) + d - 1
    return era * 146097 + yoe * 365 + math.floor(yoe / 4) - math.floor(yoe / 100) + doy - 719468
  end
  local function daysin(y, m)
    if m == 2 then return (y % 4 == 0 and (y % 100 ~= 0 or y % 400 == 0)) and 29 or 28 end
    return (m == 4 or m == 6 or m == 9 or m == 11) and 30 or 31
  end

  -- UTCTime (seconds may be missing, as Go allows) or GeneralizedTime, as seconds since 1970. Go re-formats what it
  -- parsed and compares, so a zero offset must be "Z", and an offset's minutes are below 60.
  function der.time(s, i, e)
    local tag, first, last, after = der.any(s, i, e)
    local t = sub(s, first, last)
    local y, rest
    if tag == 23 then
      y, rest = t:match("^(%d%d)(.*)$")
      y = y and (tonumber(y) >= 50 and 1900 + y or 2000 + y)
    elseif tag == 24 then
      y, rest = t:match("^(%d%d%d%d)(.*)$")
      y = tonumber(y)
    end
    if not y then error("bad time", 0) end
    local mo, d, h, mi, sec, zone = rest:match("^(%d%d)(%d%d)(%d%d)(%d%d)(%d%d)(.*)$")
    if not mo and tag == 23 then
      mo, d, h, mi, zone = rest:match("^(%d%d)(%d%d)(%d%d)(%d%d)(.*)$")
      sec = "0"
    end
    if not mo then error("bad time", 0) end
    mo, d, h, mi, sec = tonumber(mo), tonumber(d), tonumber(h), tonumber(mi), tonumber(sec)
    if mo < 1 or mo > 12 or d < 1 or d > daysin(y, mo) or h > 23 or mi > 59 or sec > 59 then error("bad time", 0) end
    local off = 0
    if zone ~= "Z" then
      local sign, zh, zm = zone:match("^([+-])(%d%d)(%d%d)$")
      if not sign then error("bad time", 0) end
      zh, zm = tonumber(zh), tonumber(zm)
      off = (zh * 60 + zm) * 60
      if off == 0 or zh > 24 or zm > 59 then error("bad time", 0) end
      if sign == "-" then off = -off end
    end
    return days(y, mo, d) * 86400 + h * 3600 + mi * 60 + sec - off, after
  end
end
