-- Go's Certificate.Verify with KeyUsages ClientAuth (verify.go, constraints.go of Go 1.26) over parsed certificates.
-- It finds the chain that Go would find, and checks on it what Go checks. Signatures are checked by BoringSSL through
-- Envoy; those it cannot check from here (RSA-PSS, Ed25519) count only if BoringSSL has accepted the certificate itself.
local verify = {}
do
  local byte, sub = string.byte, string.sub

  -- Go checks at most 100 signatures per certificate; nobody needs that many, and each costs a worker thread time.
  local MAX_SIGNATURES = 20

  -- trust: {validated = BoringSSL's opinion, check = function(hash, spki, signature, tbs) -> boolean}
  local function signedby(c, parent, trust)
    if (parent.version == 3 and not parent.basic) or (parent.basic and not parent.ca) then return false end
    if parent.usage ~= 0 and not parent.certsign then return false end
    local alg, key = c.signed, parent.key
    if not alg or not key or not key.usable or alg.key ~= key.type or not c.signature then return false end
    if alg.hash then return trust.check(alg.hash, parent.spki, c.signature, c.tbs) end
    return trust.validated
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

  local MAPPED = ("\0"):rep(10) .. "\255\255" -- an IPv4 address in 16 bytes, which Go's networks treat by themselves

  local function permits(nc, san)
    -- Names of people and URIs are not compared here: refused when a constraint stands above them.
    if san.other or nc.other then return false end
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

  -- Whether presented[1] is good for client authentication under these roots.
  function verify.client(presented, roots, trust, now)
    local leaf = presented[1]
    if not fits(leaf, "leaf", {}) then return false end
    local left = MAX_SIGNATURES
    local function accepted(chain)
      return current(chain, now) and policies(chain) and usable(chain) and constraints(chain)
    end
    for _, root in ipairs(roots) do
      if root.raw == leaf.raw then return accepted({ leaf }) end
    end
    local function build(chain)
      local c = chain[#chain]
      local function try(candidate, kind)
        if candidate.subject ~= c.issuer or not candidate.key or inchain(candidate, chain) then return false end
        left = left - 1
        if left < 0 or not signedby(c, candidate, trust) or not fits(candidate, kind, chain) then return false end
        chain[#chain + 1] = candidate
        if kind == "root" and accepted(chain) or kind == "intermediate" and build(chain) then return true end
        chain[#chain] = nil
        return false
      end
      for _, root in ipairs(roots) do
        if try(root, "root") then return true end
      end
      for n = 2, #presented do
        if try(presented[n], "intermediate") then return true end
      end
      return false
    end
    return build({ leaf })
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
