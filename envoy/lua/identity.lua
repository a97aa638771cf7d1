-- Who a client certificate stands for, as kube-apiserver's x509 authenticator with CommonNameUserConversion has it.
-- An outcome is one of
--   {user, groups, uid, credential}  a valid certificate
--   {}                               one that gives no user: refused by Go's Verify, no common name, a bad UID. The
--                                    apiserver then answers as it does to the front-proxy certificate without a user
--   {deny = words}                   one whose handshake Go would end, or an identity that no header can carry
local identity = {}
do
  local find, sub = string.find, string.sub
  local now = os.time

  local MAX_CHAIN = 32768          -- bytes of URL-encoded PEM
  local MAX_ENTRIES, MAX_BYTES = 4096, 16777216
  local CA_AGE = 2                 -- seconds between looks at the CA file

  local ca = { checked = -math.huge }
  local cache, entries, bytes

  local function forget()
    cache, entries, bytes = { [true] = {}, [false] = {} }, 0, 0
  end
  forget()

  -- The roots in the CA file, looked at again while it may have changed. A file that is not whole (being overwritten,
  -- say) changes nothing; a root that Go or this parser would not read is left out, and said. Without any root this
  -- raises, and the request fails closed.
  local function roots(h, t)
    if t - ca.checked >= CA_AGE or t < ca.checked then
      ca.checked = t
      local f = io.open(CONFIG.ca_file, "rb")
      local text = f and f:read("*a")
      if f then f:close() end
      if text and text ~= ca.text then
        local list, blocks, broken = {}, pem.certificates(text)
        for n, raw in ipairs(blocks) do
          local c = x509.parse(raw)
          if c then list[#list + 1] = c
          else h:logErr(CONFIG.ca_file .. ": certificate " .. n .. " can't be parsed, so nobody that it has signed is let in") end
        end
        if broken > 0 then h:logErr(CONFIG.ca_file .. ": " .. broken .. " certificates are not whole, the last good ones stay") end
        if #list > 0 and broken == 0 then
          ca.text, ca.roots = text, list
          forget()
        end
      end
    end
    return ca.roots or error("no certificate authority in " .. CONFIG.ca_file)
  end

  -- Why a value cannot arrive unchanged in a header field, or nil.
  local function obstacle(v)
    if v == "" then return "is empty" end
    if find(v, "[%z\1-\31\127]") then return "holds a control character" end
    if find(v, "^ ") or find(v, " $") then return "begins or ends with a blank" end
  end

  local function uncarried(c)
    local why = obstacle(c.cn)
    if why then return "the client certificate's common name " .. why end
    for _, o in ipairs(c.orgs) do
      why = obstacle(o)
      if why then return "an organization of the client certificate " .. why end
    end
    why = c.uids[1] and obstacle(c.uids[1])
    if why then return "the client certificate's UID " .. why end
  end

  local function judge(h, ssl, chain, validated, t)
    local list, broken = {}, 0
    if #chain <= MAX_CHAIN then list, broken = pem.certificates(pem.unescape(chain)) end
    if broken > 0 then list = {} end
    if #chain > MAX_CHAIN then return { deny = "the client certificate chain is too large" } end
    if #list == 0 or sub(chain, 1, #ssl:urlEncodedPemEncodedPeerCertificate()) ~= ssl:urlEncodedPemEncodedPeerCertificate() then
      return { deny = "the client certificate cannot be read" }
    end
    local presented = {}
    for n, raw in ipairs(list) do
      local c, why = x509.parse(raw)
      if not c then return { deny = "malformed client certificate: " .. (why:match("^[%w%- ]+$") or "cannot be read") } end
      presented[n] = c
    end
    local leaf = presented[1]
    if not leaf.key or not leaf.key.usable then return { deny = "unsupported key in the client certificate" } end

    local trusted = roots(h, t)
    -- Envoy hands out one key per request: a second import gives the first key again (1.40). So the key is proven to be
    -- the root's by the root's own signature on itself, and no other root is asked.
    local root, key
    local function signed(c)
      return h:verifySignature(c.signed.hash, key, c.signature, #c.signature, c.tbs, #c.tbs) == true
    end
    local trust = { validated = validated }
    function trust.check(r, c)
      if not root then
        root = r
        if r.signed and r.signed.hash and r.signature then
          key = h:importPublicKey(r.spki, #r.spki):get()
          if not signed(r) then key = nil end
        end
      end
      if not key or r.spki ~= root.spki or not c.signed or not c.signed.hash or not c.signature then return nil end
      return signed(c)
    end
    local out = {}
    out.from, out.to = verify.span(presented, trusted, t)
    if not verify.client(presented, trusted, trust, t) then return out end
    if leaf.cn == "" or #leaf.uids > 1 or leaf.uids[1] == "" then return out end
    out.deny = uncarried(leaf)
    if out.deny then return out end
    out.user, out.groups, out.uid = leaf.cn, leaf.orgs, leaf.uids[1]
    out.credential = "X509SHA256=" .. ssl:sha256PeerCertificateDigest()
    return out
  end

  -- The outcome for this connection's certificate, or nil without one. Remembered by the whole chain and BoringSSL's
  -- opinion of it, until a certificate in it or a root begins or ends, or the CA file changes.
  function identity.of(h)
    local ssl = h:streamInfo():downstreamSslConnection()
    if ssl == nil or not ssl:peerCertificatePresented() then return nil end
    local validated, chain, t = ssl:peerCertificateValidated(), ssl:urlEncodedPemEncodedPeerCertificateChain(), now()
    roots(h, t)
    local out = cache[validated][chain]
    if out and (not out.from or (t >= out.from and t < out.to)) then return out end
    out = judge(h, ssl, chain, validated, t)
    entries, bytes = entries + 1, bytes + #chain
    if entries > MAX_ENTRIES or bytes > MAX_BYTES then
      forget()
      entries, bytes = 1, #chain
    end
    cache[validated][chain] = out
    return out
  end

  -- Writes the outcome into the request's headers. Clients' own copies were removed before (early_header_mutation);
  -- the ones that would make an identity are removed here once more.
  function identity.write(headers, out)
    headers:remove("x-remote-user")
    headers:remove("x-remote-group")
    headers:remove("x-remote-uid")
    if out and out.user then
      for _, group in ipairs(out.groups) do headers:add("x-remote-group", group) end
      if out.uid then headers:add("x-remote-uid", out.uid) end
      headers:replace("x-remote-extra-authentication.kubernetes.io%2fcredential-id", out.credential)
      headers:add("x-remote-user", out.user)
    end
  end
end

-- Answers the request with a Status. Words are ours alone, never bytes of the request.
local function refuse(h, code, reason, message)
  h:respond({ [":status"] = tostring(code), ["content-type"] = "application/json" }, string.format(
    '{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"%s","reason":"%s","code":%d}\n',
    message, reason, code))
end
