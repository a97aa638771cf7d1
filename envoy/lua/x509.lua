-- One certificate, parsed as Go's crypto/x509 does (parser.go of Go 1.26): x509.parse returns its parts, or nil and the
-- reason where Go's parser would refuse it, which in kube-apiserver ends the TLS handshake.
local x509 = {}
do
  local byte, sub, find = string.byte, string.sub, string.find
  local SEQ, SET, BOOLEAN, INTEGER, OCTETS = der.SEQUENCE, der.SET, der.BOOLEAN, der.INTEGER, der.OCTETS
  local id = der.oidbytes

  local CN, O, UID = id "2.5.4.3", id "2.5.4.10", id "1.3.6.1.4.1.57683.2"
  local RSA, DSA, EC, ED25519 = id "1.2.840.113549.1.1.1", id "1.2.840.10040.4.1", id "1.2.840.10045.2.1", id "1.3.101.112"
  local CURVES = { [id "1.3.132.0.33"] = 57, [id "1.2.840.10045.3.1.7"] = 65, [id "1.3.132.0.34"] = 97, [id "1.3.132.0.35"] = 133 }
  local ANY_USAGE, CLIENT_AUTH = id "2.5.29.37.0", id "1.3.6.1.5.5.7.3.2"
  local ANY_POLICY = id "2.5.29.32.0"

  -- Signature algorithms that Go verifies. SHA-1 and MD5 are absent: Go does not accept them in a chain.
  local SIGNATURES = {
    [id "1.2.840.113549.1.1.11"] = { key = "rsa", hash = "sha256" },
    [id "1.2.840.113549.1.1.12"] = { key = "rsa", hash = "sha384" },
    [id "1.2.840.113549.1.1.13"] = { key = "rsa", hash = "sha512" },
    [id "1.2.840.10045.4.3.2"] = { key = "ec", hash = "sha256" },
    [id "1.2.840.10045.4.3.3"] = { key = "ec", hash = "sha384" },
    [id "1.2.840.10045.4.3.4"] = { key = "ec", hash = "sha512" },
  }
  local PSS = id "1.2.840.113549.1.1.10"
  -- The parameters of RSA-PSS that Go knows: one hash for both uses, a salt of the hash's length.
  local PSS_PARAMS = {}
  for n, len in ipairs({ 32, 48, 64 }) do
    local function tlv(tag, s) return string.char(tag, #s) .. s end
    for _, null in ipairs({ "\5\0", "" }) do
      for _, mgfnull in ipairs({ "\5\0", "" }) do
        local oid = tlv(6, id("2.16.840.1.101.3.4.2." .. n))
        PSS_PARAMS[tlv(SEQ, tlv(0xA0, tlv(SEQ, oid .. null))
          .. tlv(0xA1, tlv(SEQ, tlv(6, id "1.2.840.113549.1.1.8") .. tlv(SEQ, oid .. mgfnull)))
          .. tlv(0xA2, tlv(INTEGER, string.char(len))))] = true
      end
    end
  end

  local function algorithm(s, i, e) -- contents of an AlgorithmIdentifier: OID, parameters
    local oid, after = der.oid(s, i, e)
    if after > e then return oid, "" end
    local _, _, _, last = der.any(s, after, e)
    return oid, sub(s, after, last - 1)
  end

  local function signature(oid, params)
    if oid == PSS then return PSS_PARAMS[params] and { key = "rsa", pss = true } or nil end
    if oid == ED25519 then return params == "" and { key = "ed25519" } or nil end
    return SIGNATURES[oid]
  end

  -- Calls f with the type and the decoded value of each attribute, in DER order.
  local function attributes(s, i, e, f)
    while i <= e do
      local a, b, after = der.get(s, i, e, SET)
      while a <= b do
        local c, d, next = der.get(s, a, b, SEQ)
        local oid, v = der.oid(s, c, d)
        local tag, first, last = der.any(s, v, d)
        f(oid, asn1string(tag, sub(s, first, last)))
        a = next
      end
      i = after
    end
  end

  -- A name without case, blanks, types and order: names that any verifier takes for the same are the same here.
  local function loose(s, i, e)
    local out = {}
    attributes(s, i, e, function(_, v) out[#out + 1] = v:gsub("[%s%z]", ""):lower() end)
    table.sort(out)
    return table.concat(out, "\n")
  end

  -- The key: nil for an algorithm that Go does not know.
  local function publickey(oid, params, s, first, last, pad)
    if pad ~= 0 and (oid == RSA or oid == EC or oid == ED25519 or oid == DSA) then error("bits in public key", 0) end
    if oid == RSA then
      if params ~= "\5\0" then error("RSA key missing NULL parameters", 0) end
      local a, b = der.get(s, first, last, SEQ)
      local n1, n2, after = der.int(s, a, b)
      local e1, e2 = der.int(s, after, b)
      if der.negative(s, n1) or der.negative(s, e1) or e2 - e1 > 7 then error("invalid RSA key", 0) end
      local e, odd = der.number(s, e1, e2), byte(s, e2) % 2 == 1
      if e == 0 or (n1 == n2 and byte(s, n1) == 0) then error("invalid RSA key", 0) end
      if byte(s, n1) == 0 then n1 = n1 + 1 end
      local bits, top = (n2 - n1) * 8, byte(s, n1)
      while top > 0 do bits, top = bits + 1, math.floor(top / 2) end
      if bits > 8192 then error("RSA key too large", 0) end
      return { type = "rsa", usable = bits >= 1024 and e >= 2 and e < 2 ^ 31 and odd and byte(s, n2) % 2 == 1 }
    elseif oid == EC then
      local size = CURVES[(der.oid(params, 1, #params))]
      if not size then error("unsupported elliptic curve", 0) end
      if last - first + 1 ~= size or byte(s, first) ~= 4 then error("invalid elliptic curve point", 0) end
      return { type = "ec", usable = true }
    elseif oid == ED25519 then
      if params ~= "" or last - first ~= 31 then error("invalid Ed25519 key", 0) end
      return { type = "ed25519", usable = true }
    elseif oid == DSA then
      local function positive(t, i, e)
        local a, b, after = der.int(t, i, e)
        if der.negative(t, a) or (a == b and byte(t, a) == 0) then error("invalid DSA key", 0) end
        return after
      end
      positive(s, first, last)
      local a, b = der.get(params, 1, #params, SEQ)
      for _ = 1, 3 do a = positive(params, a, b) end
      return { type = "dsa", usable = false }
    end
    return nil
  end

  local function int63(s, i, e, tag) -- an int64's sign and size; its value only matters near zero
    local a, b, after = der.int(s, i, e, tag)
    if b - a > 7 then error("INTEGER too large", 0) end
    return der.negative(s, a) and -1 or der.number(s, a, b), after
  end

  -- URIs: a part of what Go's url.Parse accepts, all of which it does. Others are refused (see refused classes). The
  -- second result is the host's name, if there is one.
  local function plainuri(u)
    local scheme, rest = u:match("^(%a[%w+.-]*):(.*)$")
    if not scheme or find(u, "[^%w%-._~:/?#@!$&'()*+,;=%%]") then return false end
    local plain, fragment = rest:match("^([^#]*)#?(.*)$")
    local before = plain:match("^([^?]*)")
    local function escapes(s) return not s:gsub("%%%x%x", ""):find("%", 1, true) end
    if not escapes(fragment) then return false end
    if before:sub(1, 1) ~= "/" then return true end -- opaque
    if not escapes(before) then return false end
    local host = before:match("^//([^/]*)")
    if not host then return true end
    local name = host:match("^([%w%-._]*)$") or host:match("^([%w%-._]*):%d*$")
    if not name then return false end
    if host == "" then return true end
    return x509.domain(host, false), name
  end

  -- A dotted IPv4 address, as Go's netip.ParseAddr reads it.
  local function address(s)
    local parts = { s:match("^(%d+)%.(%d+)%.(%d+)%.(%d+)$") }
    for _, d in ipairs(parts) do
      if #d > 3 or tonumber(d) > 255 or #d > 1 and byte(d, 1) == 48 then return false end
    end
    return #parts == 4
  end

  -- A mail address as Go reads it, without quotes and backslashes (see refused classes): both parts, or nil.
  local function mailbox(s)
    local part, domain = s:match("^([%w!#$%%&'*+%-/=?^_`{|}~.]+)@(.*)$")
    if not part or find(part, "^%.") or find(part, "%.$") or find(part, "..", 1, true) or not x509.domain(domain, false) then return nil end
    return { part = part, domain = domain:lower() }
  end

  -- Go's domainNameValid.
  function x509.domain(s, constraint)
    if s == "" then return true end
    if byte(s, #s) == 46 then return false end
    if constraint and byte(s, 1) == 46 then s = sub(s, 2) end
    return not find(s, "[^\33-\126]") and not find(s, "^%.") and not find(s, "..", 1, true) and s ~= ""
  end

  local function ia5(v)
    if find(v, "[\128-\255]") then error("not an IA5String", 0) end
    return v
  end

  local function names(c, s, i, e) -- subject alternative names
    -- incomparable: a name that Go compares with no constraints, so that all of them refuse it
    local san = { dns = {}, ip = {}, uri = {}, mail = {}, incomparable = false }
    local found = false
    local a, b = der.get(s, i, e, SEQ)
    while a <= b do
      local tag, first, last, after = der.any(s, a, b)
      local v = sub(s, first, last)
      if tag == 0x82 then
        san.dns[#san.dns + 1] = ia5(v)
      elseif tag == 0x87 then
        if #v ~= 4 and #v ~= 16 then error("bad IP address", 0) end
        san.ip[#san.ip + 1] = v
      elseif tag == 0x81 then
        local m = mailbox(ia5(v))
        san.mail[#san.mail + 1] = m
        san.incomparable = san.incomparable or not m
      elseif tag == 0x86 then
        local plain, host = plainuri(ia5(v))
        if not plain then error("unusual URI", 0) end
        local named = host and not address(host)
        if named then san.uri[#san.uri + 1] = host:lower() end
        san.incomparable = san.incomparable or not named
      end
      found = found or tag == 0x82 or tag == 0x87 or tag == 0x81 or tag == 0x86
      a = after
    end
    c.san, c.sanvalue = san, sub(s, i, e)
    return not found
  end

  -- Name constraints.
  local function constraints(c, s, i, e)
    local a, b, after = der.get(s, i, e, SEQ)
    if after <= e then error("trailing data", 0) end
    local nc = { odd = false }
    local unhandled, seen = false, false
    for _, kind in ipairs({ "permitted", "excluded" }) do
      local list = { dns = {}, ip = {}, uri = {}, domain = {}, mail = {} }
      if der.peek(s, a, b, kind == "permitted" and 0xA0 or 0xA1) then
        local _, p, q, next = der.any(s, a, b)
        if p <= q then seen = true end
        while p <= q do
          local x, y, z = der.get(s, p, q, SEQ)
          local tag, first, last = der.any(s, x, y)
          local v = sub(s, first, last)
          if tag == 0x82 then
            if not x509.domain(ia5(v), true) then error("bad DNS constraint", 0) end
            list.dns[#list.dns + 1] = v:lower()
          elseif tag == 0x87 then
            local half = #v / 2
            if half ~= 4 and half ~= 16 then error("bad IP constraint", 0) end
            local zero, bits = false, 0
            for k = half + 1, #v do
              local m = byte(v, k)
              if zero and m ~= 0 then error("bad IP mask", 0) end
              if m ~= 255 then
                zero = true
                for n = 7, 1, -1 do
                  if m == 256 - 2 ^ n then bits, m = bits + 8 - n, 0 break end
                end
                if m ~= 0 then error("bad IP mask", 0) end
              else
                bits = bits + 8
              end
            end
            if find(sub(v, 1, half), "[^%z]", math.ceil(bits / 8) + 1)
              or bits % 8 ~= 0 and byte(v, math.ceil(bits / 8)) % 2 ^ (8 - bits % 8) ~= 0 then
              nc.odd = true -- host bits set: Go's search order then decides
            end
            list.ip[#list.ip + 1] = { addr = sub(v, 1, half), bits = bits }
          elseif tag == 0x81 or tag == 0x86 then
            local domain = tag == 0x81 and v:match("^[%w%-_]+@([%w%-.]+)$") or v
            if find(ia5(domain), "@", 1, true) or tag == 0x86 and find(v, ":") or tag == 0x86 and find(v, "%d$") or not x509.domain(domain, domain == v) then
              error("unusual constraint", 0)
            end
            if tag == 0x86 then list.uri[#list.uri + 1] = v:lower()
            elseif domain == v then list.domain[#list.domain + 1] = v:lower()
            else list.mail[#list.mail + 1] = mailbox(v) or error("unusual constraint", 0) end
          else
            unhandled = true
          end
          p = z
        end
        a = next
      end
      nc[kind] = list
    end
    if a <= b or not seen then error("bad name constraints", 0) end
    c.nc = nc
    return unhandled
  end

  local function skip(s, i, e) return select(4, der.any(s, i, e)) end

  -- By OID: parses one extension's value; returns true if Go would count it as unhandled.
  local EXTENSIONS = {
    [id "2.5.29.15"] = function(c, s, i, e)
      local first, last, pad = der.bits(s, i, e)
      local n, usage = (last - first + 1) * 8 - pad, 0
      for k = 0, math.min(n, 9) - 1 do
        local bit = math.floor(byte(s, first + math.floor(k / 8)) / 2 ^ (7 - k % 8)) % 2
        usage = usage + bit * 2 ^ k
      end
      c.usage, c.certsign = usage, math.floor(usage / 32) % 2 == 1
    end,
    [id "2.5.29.19"] = function(c, s, i, e)
      local a, b = der.get(s, i, e, SEQ)
      c.basic, c.ca, c.pathlen = true, false, -1
      if der.peek(s, a, b, BOOLEAN) then c.ca, a = der.bool(s, a, b) end
      if der.peek(s, a, b, INTEGER) then
        c.pathlen = int63(s, a, b)
        if c.pathlen < 0 then error("negative path length", 0) end
      end
    end,
    [id "2.5.29.17"] = names,
    [id "2.5.29.30"] = constraints,
    [id "2.5.29.31"] = function(_, s, i, e)
      local a, b = der.get(s, i, e, SEQ)
      while a <= b do
        local p, q, after = der.get(s, a, b, SEQ)
        if der.peek(s, p, q, 0xA0) then
          local x, y = der.get(s, p, q, 0xA0)
          local u, v = der.get(s, x, y, 0xA0)
          while u <= v and byte(s, u) == 0x86 do u = skip(s, u, v) end
        end
        a = after
      end
    end,
    [id "2.5.29.35"] = function(c, s, i, e, critical)
      if critical then error("critical authority key identifier", 0) end
      local a, b = der.get(s, i, e, SEQ)
      if der.peek(s, a, b, 0x80) then
        local first, last = der.get(s, a, b, 0x80)
        c.authorityid = sub(s, first, last)
      end
    end,
    [id "2.5.29.14"] = function(c, s, i, e, critical)
      if critical then error("critical subject key identifier", 0) end
      local first, last = der.get(s, i, e, OCTETS)
      c.subjectid = sub(s, first, last)
    end,
    [id "2.5.29.36"] = function(c, s, i, e)
      local a, b = der.get(s, i, e, SEQ)
      if der.peek(s, a, b, 0x80) then c.explicit, a = int63(s, a, b, 0x80) end
      if der.peek(s, a, b, 0x81) then int63(s, a, b, 0x81) end
    end,
    [id "2.5.29.37"] = function(c, s, i, e)
      local a, b = der.get(s, i, e, SEQ)
      while a <= b do
        local oid
        oid, a = der.oid(s, a, b)
        c.restricted = true
        if oid == ANY_USAGE or oid == CLIENT_AUTH then c.clientauth = true end
      end
    end,
    [id "2.5.29.32"] = function(_, s, i, e)
      local a, b = der.get(s, i, e, SEQ)
      local seen = {}
      while a <= b do
        local p, q, after = der.get(s, a, b, SEQ)
        local x, y = der.get(s, p, q, der.OID)
        local oid = sub(s, x, y)
        -- Go's OID type: any size, minimal, complete.
        if seen[oid] or oid == "" or byte(oid, #oid) >= 128 or find(oid, "^\128") or find(oid, "[%z\1-\127]\128") then
          error("bad policies", 0)
        end
        seen[oid] = true
        a = after
      end
    end,
    [id "2.5.29.33"] = function(c, s, i, e)
      local a, b = der.get(s, i, e, SEQ)
      while a <= b do
        local p, q, after = der.get(s, a, b, SEQ)
        local x, y, next = der.get(s, p, q, der.OID)
        local u, v = der.get(s, next, q, der.OID)
        if sub(s, x, y) == ANY_POLICY or sub(s, u, v) == ANY_POLICY then c.anymapped = true end
        a = after
      end
    end,
    [id "2.5.29.54"] = function(_, s, i, e) int63(s, i, e) end,
    [id "1.3.6.1.5.5.7.1.1"] = function(_, s, i, e, critical)
      if critical then error("critical authority information access", 0) end
      local a, b = der.get(s, i, e, SEQ)
      while a <= b do
        local p, q, after = der.get(s, a, b, SEQ)
        local _, next = der.oid(s, p, q)
        if der.peek(s, next, q, 0x86) then skip(s, next, q) end
        a = after
      end
    end,
  }

  local function extensions(c, s, i, e)
    local a, b = der.get(s, i, e, SEQ)
    local list, seen = {}, {}
    while a <= b do
      local p, q, after = der.get(s, a, b, SEQ)
      local oid, critical = nil, false
      oid, p = der.oid(s, p, q)
      if der.peek(s, p, q, BOOLEAN) then critical, p = der.bool(s, p, q) end
      local first, last = der.get(s, p, q, OCTETS)
      if seen[oid] then error("duplicate extension", 0) end
      seen[oid] = true
      list[#list + 1] = { oid, first, last, critical }
      a = after
    end
    for _, x in ipairs(list) do
      local f = EXTENSIONS[x[1]]
      local unhandled = true
      if f then unhandled = f(c, s, x[2], x[3], x[4]) end
      if unhandled and x[4] then c.unhandled = true end
    end
  end

  local function parse(s)
    local c = { raw = s, orgs = {}, uids = {}, cn = "", usage = 0, basic = false, ca = false, pathlen = -1 }
    local a, b, after = der.get(s, 1, #s, SEQ)
    if after <= #s then error("trailing data", 0) end
    local i, e, outer = der.get(s, a, b, SEQ)
    c.tbs = sub(s, a, outer - 1)

    c.version = 1
    if der.peek(s, i, e, 0xA0) then
      local p, q, next = der.get(s, i, e, 0xA0)
      local x, y, rest = der.int(s, p, q)
      if rest <= q or x ~= y or byte(s, x) > 2 then error("invalid version", 0) end
      c.version, i = byte(s, x) + 1, next
    end
    local first, last
    first, last, i = der.int(s, i, e)
    if der.negative(s, first) then error("negative serial number", 0) end

    local x, y
    x, y, i = der.get(s, i, e, SEQ)
    local p, q, sig = der.get(s, outer, b, SEQ)
    if sub(s, x, y) ~= sub(s, p, q) then error("signature algorithms differ", 0) end
    c.signed = signature(algorithm(s, x, y))

    local start = i
    first, last, i = der.get(s, i, e, SEQ)
    c.looseissuer = loose(s, first, last)
    c.issuer = sub(s, start, i - 1)

    first, last, i = der.get(s, i, e, SEQ)
    local next
    c.notbefore, next = der.time(s, first, last)
    c.notafter = der.time(s, next, last)

    start = i
    first, last, i = der.get(s, i, e, SEQ)
    attributes(s, first, last, function(oid, v)
      if oid == CN then c.cn = v
      elseif oid == O then c.orgs[#c.orgs + 1] = v
      elseif oid == UID then c.uids[#c.uids + 1] = v end
    end)
    c.subject, c.loosesubject = sub(s, start, i - 1), loose(s, first, last)

    start = i
    first, last, i = der.get(s, i, e, SEQ)
    c.spki = sub(s, start, i - 1)
    x, y, next = der.get(s, first, last, SEQ)
    local oid, params = algorithm(s, x, y)
    local k1, k2, pad = der.bits(s, next, last)
    c.key = publickey(oid, params, s, k1, k2, pad)

    if c.version > 1 then
      if der.peek(s, i, e, 0x81) then i = skip(s, i, e) end
      if der.peek(s, i, e, 0x82) then i = skip(s, i, e) end
      if c.version == 3 and der.peek(s, i, e, 0xA3) then
        first, last = der.get(s, i, e, 0xA3)
        extensions(c, s, first, last)
      end
    end
    first, last, pad = der.bits(s, sig, b)
    c.signature = pad == 0 and sub(s, first, last) or nil
    return c
  end

  function x509.parse(s)
    local ok, c = pcall(parse, s)
    if ok then return c end
    return nil, c
  end
end
