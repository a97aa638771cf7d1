-- Go's Certificate.Verify with KeyUsages ClientAuth (verify.go, constraints.go of Go 1.26) over parsed certificates.
-- BoringSSL has checked the signatures in the handshake; here stands what Go asks of a chain besides, and what BoringSSL
-- does not ask or asks otherwise. A root's signature on the leaf is checked here too, so that the ordinary certificate,
-- which the cluster's CA has signed itself, needs BoringSSL's opinion of nothing but that signature.
local verify = {}
do
  local byte, sub = string.byte, string.sub

  local MAX_WAYS = 32 -- through the presented certificates; nobody needs more than one

  -- Go's CheckSignatureFrom without the signature.
  local function signable(c, parent)
    if (parent.version == 3 and not parent.basic) or (parent.basic and not parent.ca) then return false end
    if parent.usage ~= 0 and not parent.certsign then return false end
    local alg, key = c.signed, parent.key
    return alg and key and key.usable and alg.key == key.type and c.signature and true or false
  end

  -- Go's isValid without the time, which is compared with every certificate of the chain at the end.
  local function fits(c, kind, chain)
    if c.unhandled then return false end
    if #chain > 0 and chain[#chain].issuer ~= c.subject then return false end
    if kind == "intermediate" and not (c.basic and c.ca) then return false end
    return not (c.basic and c.pathlen >= 0 and #chain - 1 > c.pathlen)
  end

  local function inchain(c, chain)
    for _, x in ipairs(chain) do
      if x.subject == c.subject and x.spki == c.spki then
        if not c.sanvalue and not x.sanvalue then return true end
        if not c.sanvalue or not x.sanvalue then return false end
        if c.sanvalue == x.sanvalue then return true end
      end
    end
    return false
  end

  local function usable(chain) -- extended key usages, nested over the whole chain
    for _, c in ipairs(chain) do
      if c.restricted and not c.clientauth then return false end
    end
    return true
  end

  -- Policies only refuse when a certificate demands an explicit one; such chains are refused without looking further.
  local function policies(chain)
    for n = 1, #chain - 1 do
      local c = chain[n]
      if c.explicit and (n == 1 and c.explicit == 0 or n > 1 and c.explicit >= 0) then return false end
      if n > 1 and c.anymapped then return false end
    end
    return true
  end

  local function dnssuffix(constraint, name)
    if #constraint > #name or sub(name, -#constraint) ~= constraint then return false end
    return byte(constraint, 1) == 46 or #constraint == #name or byte(name, #name - #constraint) == 46
  end

  local function dnsmatch(list, name, excluded)
    for _, constraint in ipairs(list) do
      if constraint == "" or dnssuffix(constraint, name) then return true end
      -- *.example.com is excluded by a constraint on one of the names it stands for.
      if excluded and byte(name, 1) == 42 then
        local a, b = constraint:find(".", 1, true), name:find(".", 1, true)
        if a and b and sub(constraint, a) == sub(name, b) then return true end
      end
    end
    return false
  end

  local function ipmatch(list, ip)
    for _, net in ipairs(list) do
      if #net.addr == #ip then
        local whole, rest = math.floor(net.bits / 8), net.bits % 8
        local function top(s) return math.floor(byte(s, whole + 1) / 2 ^ (8 - rest)) end
        if sub(net.addr, 1, whole) == sub(ip, 1, whole) and (rest == 0 or top(net.addr) == top(ip)) then return true end
      end
    end
    return false
  end

  local function mailmatch(list, m, excluded)
    for _, x in ipairs(list.mail) do
      if x.part == m.part and x.domain == m.domain then return true end
    end
    return dnsmatch(list.domain, m.domain, excluded)
  end

  local MAPPED = ("\0"):rep(10) .. "\255\255" -- an IPv4 address in 16 bytes, which Go's networks treat by themselves

  local function permits(nc, san)
    if san.incomparable or nc.odd then return false end
    for _, name in ipairs(san.dns) do
      if not x509.domain(name, false) then return false end
      local lower = name:lower()
      if #nc.permitted.dns > 0 and not dnsmatch(nc.permitted.dns, lower, false) then return false end
      if dnsmatch(nc.excluded.dns, lower, true) then return false end
    end
    for _, ip in ipairs(san.ip) do
      if #ip == 16 and sub(ip, 1, 12) == MAPPED and #nc.permitted.ip + #nc.excluded.ip > 0 then return false end
      if #nc.permitted.ip > 0 and not ipmatch(nc.permitted.ip, ip) then return false end
      if ipmatch(nc.excluded.ip, ip) then return false end
    end
    for _, host in ipairs(san.uri) do
      if not x509.domain(host, false) then return false end
      if #nc.permitted.uri > 0 and not dnsmatch(nc.permitted.uri, host, false) then return false end
      if dnsmatch(nc.excluded.uri, host, true) then return false end
    end
    for _, m in ipairs(san.mail) do
      local permitted, excluded = nc.permitted, nc.excluded
      if #permitted.domain + #permitted.mail > 0 and not mailmatch(permitted, m, false) then return false end
      if mailmatch(excluded, m, true) then return false end
    end
    return true
  end

  local function constraints(chain)
    for n, c in ipairs(chain) do
      if c.san then
        for above = n + 1, #chain do
          if chain[above].nc and not permits(chain[above].nc, c.san) then return false end
        end
      end
    end
    return true
  end

  local function current(chain, now)
    for _, c in ipairs(chain) do
      if now < c.notbefore or now >= c.notafter then return false end
    end
    return true
  end

  -- A chain that Go would find and accept, given that its signatures are right.
  local function acceptable(chain, now)
    for n, c in ipairs(chain) do
      local kind = n == #chain and n > 1 and "root" or n > 1 and "intermediate" or "leaf"
      local below = { unpack(chain, 1, n - 1) }
      if not fits(c, kind, below) or n > 1 and (inchain(c, below) or not signable(chain[n - 1], c)) then return false end
    end
    return current(chain, now) and policies(chain) and usable(chain) and constraints(chain)
  end

  -- Every way from the leaf upwards through presented certificates, by names as loosely as any verifier may compare
  -- them: BoringSSL's own way is among them. Calls f with each; true if none was too long and f was true for all.
  local function ways(presented, f)
    local left = MAX_WAYS
    local function up(chain)
      left = left - 1
      if left < 0 or not f(chain) then return false end
      for n = 2, #presented do
        local c, used = presented[n], false
        for _, x in ipairs(chain) do used = used or x.raw == c.raw end
        if not used and c.loosesubject == chain[#chain].looseissuer then
          chain[#chain + 1] = c
          if not up(chain) then return false end
          chain[#chain] = nil
        end
      end
      return true
    end
    return up({ presented[1] })
  end

  -- Whether presented[1] is good for client authentication under these roots. trust.validated is BoringSSL's opinion;
  -- trust.check(root, c) tells whether the root signed c: true, false, or nil where that cannot be found out from here.
  function verify.client(presented, roots, trust, now)
    local leaf = presented[1]
    for _, root in ipairs(roots) do
      if root.raw == leaf.raw then return acceptable({ leaf }, now) end
    end
    -- Accepted under one root that has signed the chain's top; or, where that is not known, under all it may be.
    local function under(chain)
      local top, unknown, all, found = chain[#chain], false, true, false
      local candidates = {}
      for _, root in ipairs(roots) do
        if root.loosesubject == top.looseissuer then
          local likely = top.authorityid and root.subjectid == top.authorityid
          table.insert(candidates, likely and 1 or #candidates + 1, root)
        end
      end
      for _, root in ipairs(candidates) do
        local signed = trust.check(root, top)
        if signed ~= false then
          local whole = { unpack(chain) }
          whole[#whole + 1] = root
          local good = acceptable(whole, now)
          if signed and good then return true, true end
          found, unknown, all = true, unknown or signed == nil, all and good
        end
      end
      return found and unknown and all, false, found
    end
    -- A root's signature on the leaf itself decides, whatever BoringSSL thinks of the certificate's usages.
    local good, proven = under({ leaf })
    if good and proven then return true end
    -- Signatures inside longer chains were checked by BoringSSL alone, so whichever way it went must be one for Go.
    if not trust.validated then return false end
    local any, trusted, others = false, {}, { leaf }
    for _, root in ipairs(roots) do trusted[root.raw] = true end
    for n = 2, #presented do -- a root that came along is no intermediate
      if not trusted[presented[n].raw] then others[#others + 1] = presented[n] end
    end
    return ways(others, function(chain)
      local ok, _, found = under(chain)
      any = any or ok
      return ok or not found
    end) and any
  end

  -- The span around now in which no certificate starts or ends, so that the answer stays the same.
  function verify.span(presented, roots, now)
    local from, to = -math.huge, math.huge
    for _, list in ipairs({ presented, roots }) do
      for _, c in ipairs(list) do
        for _, t in ipairs({ c.notbefore, c.notafter }) do
          if t <= now and t > from then from = t end
          if t > now and t < to then to = t end
        end
      end
    end
    return from, to
  end
end
