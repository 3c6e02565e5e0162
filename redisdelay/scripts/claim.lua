#!lua flags=allow-oom
-- claim leases pending jobs that are due, and sets those aside whose wait keys
-- are given (their targets take nothing now).
-- ARGV: 7 until, 8 from (us or -inf), 9 max, 10 now (us), 11 owner, 12 max tags
--       of 8 bytes, 13 "t" to claim from the jobs of the one wait key instead,
--       else "d", 14 records to read at once, 15 step of the samples, 16 until
--       of the whole claim, of which this is one shard's part; then the entry of
--       the owner hash of each lease that may come, if not all are of 11.
-- Result: {0, time, next due left or "", latest due looked at or 0, {number set
--       aside, each target and when its first job is due}, ids, records, exceptions, samples of what is left}. What is not
--       in the exceptions, a flat list of (index, bytes), is a first attempt at
--       the record's due time; the bytes are attempt 4, base 4, time 8, and in a
--       repeated call the tag, 8.
-- Cap:  256 leases; it stops after setting 512 aside, or at 1 MiB of records.
-- Repeat: the ids are saved; those still under this call's lease (by their
--       tags) are read again.
-- Allowed when Redis is out of memory: claiming is what frees it.
local MAX_ASIDE, MAX_BYTES = 512, 1048576
local read = struct.unpack
local tags = ARGV[12]

-- wait_us is the ack wait in a record.
local function wait_us(rec) return read('>I4', rec, 18) * 1000 end

if saved then
  local s = cmsgpack.unpack(saved)
  local ids, recs, exceptions = {}, {}, {}
  for i, id in ipairs(s[4]) do
    local tag = sub(tags, 8 * i - 7, 8 * i)
    local rec, ends = call('HGET', JOB, id), call('ZSCORE', INF, id .. tag)
    if rec and ends then
      local k, e = #ids + 1, #exceptions
      ids[k], recs[k] = id, rec
      local own = call('HGET', OWN, id)
      local attempts, base = read_tries(own)
      local at = own and read('>I8', own, 9) or read('>I8', rec, 10)
      exceptions[e + 1], exceptions[e + 2] = k, tries(attempts + 1, base, at) .. tag
    end
  end
  return {0, clock, s[1], s[2], s[3], ids, recs, exceptions, {}}
end

local upto, from, max, now = ARGV[7], ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
local chunk = tonumber(ARGV[14])
local source, waits = DUE, nil
if ARGV[13] == 't' then
  source = KEYS[FIRST_WAIT]
elseif #KEYS >= FIRST_WAIT then
  waits = wait_keys()
end
local ids, recs, exceptions = {}, {}, {}
local leases, untried = {}, {}
local n, aside, bytes, last = 0, 0, 0, 0

-- as_text is text() of a time. Jobs of one instant often share it.
local known, known_text = -1, ''
local function as_text(at)
  if at ~= known then known, known_text = at, text(at) end
  return known_text
end

-- lease makes lease n + 1: of rec, due at that time; own is the run state of a
-- job that was claimed before.
local function lease(id, at, rec, own)
  n = n + 1
  if own then
    local attempts, base = read_tries(own)
    local e = #exceptions
    exceptions[e + 1], exceptions[e + 2] = n, tries(attempts + 1, base, at)
    if attempts == 0 then untried[#untried + 1] = id end
  end
  if at < now then at = now end
  leases[2 * n - 1], leases[2 * n] = as_text(at + wait_us(rec)), id .. sub(tags, 8 * n - 7, 8 * n)
  bytes = bytes + #rec
end

-- set_aside notes a job for its wait key; store_aside writes them all, one
-- command a key.
local apart = {}
local function set_aside(key, at, id)
  local list = apart[key]
  if not list then
    list = {}
    apart[key] = list
  end
  local k = #list
  list[k + 1], list[k + 2] = as_text(at), id
  aside = aside + 1
end

local function store_aside()
  local keys, told = {}, {aside}
  for key in pairs(apart) do keys[#keys + 1] = key end
  table.sort(keys)
  for _, key in ipairs(keys) do
    zadd(key, apart[key])
    call('SADD', WAITS, wait_target(key))
    told[#told + 1] = wait_target(key)
    told[#told + 1] = apart[key][1]
  end
  return told
end

-- store_owners notes the owners, where the tags do not tell them.
local function store_owners()
  local slots = #ARGV > 16
  if not slots and stands_for(sub(tags, 7, 8), ARGV[11]) then return end
  local list = {}
  for i = 1, n do
    list[2 * i - 1], list[2 * i] = ids[i], slots and ARGV[16 + i] or sub(tags, 8 * i - 7, 8 * i) .. ARGV[11]
  end
  hset(OWNERS, list)
end

-- whole reports whether a first look takes all it saw: then the lists that
-- Redis returned are the result.
local function whole(m, all)
  if n > 0 or waits or m > max then return false end
  for i = 1, m do
    if not all[i] then return false end
  end
  return true
end

-- take handles the first jobs of the source and returns how many it saw there.
-- Their times are in the records and run states: scores are slow to write out.
local function take(want)
  local names = call('ZRANGE', source, from, upto, 'BYSCORE', 'LIMIT', 0, want)
  local m, used = #names, 0
  if m == 0 then return 0 end
  local all, had = call('HMGET', JOB, unpack(names)), call('HMGET', OWN, unpack(names))
  local as_is = whole(m, all)
  if as_is then ids, recs = names, all end
  for i = 1, m do
    local rec, own = all[i], had[i]
    -- An entry without a record (there should be none) is dropped.
    if rec then
      local at = own and read('>I8', own, 9) or read('>I8', rec, 10)
      local key = waits and waits[target_of(rec)]
      if key then
        set_aside(key, at, names[i])
      elseif n < max then
        lease(names[i], at, rec, own)
        if not as_is then ids[n], recs[n] = names[i], rec end
      else
        break
      end
      last = at
    end
    used = i
  end
  if from == '-inf' then
    if used > 0 then call('ZREMRANGEBYRANK', source, 0, used - 1) end
  else
    if used > 0 then call('ZREM', source, unpack(names, 1, used)) end
  end
  return m
end

while n < max and aside < MAX_ASIDE and bytes < MAX_BYTES do
  local want = max - n
  if waits and want < 64 then want = 64 end
  if want > chunk then want = chunk end
  if take(want) < want then break end
end
local told = aside > 0 and store_aside() or {}
if n > 0 then
  store_owners()
  zadd(INF, leases)
end
if #untried > 0 then call('HDEL', OWN, unpack(untried)) end
local next = call('ZRANGE', source, 0, 0, 'WITHSCORES')[2] or ''
if next == '' and source ~= DUE then call('SREM', WAITS, wait_target(source)) end
save({next, last, told, ids})
local left = samples(source, next, ARGV[16], tonumber(ARGV[15]))
return {0, clock, next, last, told, ids, recs, exceptions, left}
