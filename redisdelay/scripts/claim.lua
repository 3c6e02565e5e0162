#!lua flags=allow-oom
-- claim leases pending jobs that are due, and sets those aside whose wait keys
-- are given (their targets take nothing now).
-- ARGV: 7 until, 8 from (us or -inf), 9 max, 10 now (us), 11 owner, 12 max
--       nonces of 8 bytes, 13 "t" to claim from the jobs of the one wait key
--       instead, else "d", 14 records to read at once, 15 step of the samples,
--       16 until of the whole claim, of which this is one shard's part.
-- Result: {0, time, next due left or "", latest due looked at or 0, number set
--       aside, ids, scores, records, heads, samples of what is left}; a head
--       is the run state without its owner, 24 bytes: incarnation 8, attempt
--       4, nonce 8, base 4.
-- Cap:  256 leases; it stops after setting 512 aside, or at 1 MiB of records.
-- Repeat: the ids are saved; those still under this call's lease (by their
--       nonces) are read again.
-- Allowed when Redis is out of memory: claiming is what frees it.
local MAX_ASIDE, MAX_BYTES = 512, 1048576
local NONE = '\0\0\0\0'

-- wait_us is the ack wait in a record.
local function wait_us(rec)
  local a, b, c, d = byte(rec, 18, 21)
  return (((a * 256 + b) * 256 + c) * 256 + d) * 1000
end

if saved then
  local s = cmsgpack.unpack(saved)
  local ids, scores, recs, heads = {}, {}, {}, {}
  local was = s[4]
  if #was > 0 then
    local all, owns = call('HMGET', JOB, unpack(was)), call('HMGET', OWN, unpack(was))
    local leases = call('ZMSCORE', INF, unpack(was))
    for i = 1, #was do
      if all[i] and owns[i] and leases[i] and sub(owns[i], 13, 20) == sub(ARGV[12], 8 * i - 7, 8 * i) then
        local k = #ids + 1
        ids[k], recs[k], heads[k] = was[i], all[i], sub(owns[i], 1, 24)
        scores[k] = string.format('%.0f', leases[i] - wait_us(all[i]))
      end
    end
  end
  return {0, clock, s[1], s[2], s[3], ids, scores, recs, table.concat(heads), {}}
end

local upto, from, max, now = ARGV[7], ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
local owner, nonces, chunk = ARGV[11], ARGV[12], tonumber(ARGV[14])
local source, waits = DUE, nil
if ARGV[13] == 't' then
  source = KEYS[10]
elseif #KEYS > 9 then
  waits = wait_keys()
end

local ids, scores, recs, heads = {}, {}, {}, {}
local owns, leases = {}, {}
local n, aside, bytes, last = 0, 0, 0, 0

-- lease_end is when a lease ends, as text. Jobs of one instant often share it,
-- and turning a number into text is a good part of the work.
local ends, ends_text = -1, ''
local function lease_end(start, rec)
  if start < now then start = now end
  local at = start + wait_us(rec)
  if at ~= ends then ends, ends_text = at, string.format('%d', at) end
  return ends_text
end

local function lease(id, score, rec, own)
  n = n + 1
  local attempt, base = '\0\0\0\1', NONE
  if own then
    attempt, base = struct.pack('>I4', struct.unpack('>I4', own, 9) + 1), sub(own, 21, 24)
  end
  local head = sub(rec, 2, 9) .. attempt .. sub(nonces, 8 * n - 7, 8 * n) .. base
  ids[n], scores[n], recs[n], heads[n] = id, score, rec, head
  owns[2 * n - 1], owns[2 * n] = id, head .. owner
  leases[2 * n - 1], leases[2 * n] = lease_end(tonumber(score), rec), id
  bytes = bytes + #rec
end

-- set_aside notes a job for its wait key; store_aside writes them all, one
-- command a key.
local apart = {}
local function set_aside(key, score, id)
  local list = apart[key]
  if not list then
    list = {}
    apart[key] = list
  end
  local k = #list
  list[k + 1], list[k + 2] = score, id
  aside = aside + 1
end

local function store_aside()
  local keys = {}
  for key in pairs(apart) do keys[#keys + 1] = key end
  table.sort(keys)
  for _, key in ipairs(keys) do
    zadd(key, apart[key])
    call('SADD', WAITS, wait_target(key))
  end
end

-- take handles the first jobs of the source and returns how many it saw there.
local function take(want)
  local got = call('ZRANGE', source, from, upto, 'BYSCORE', 'LIMIT', 0, want, 'WITHSCORES')
  local m = #got / 2
  if m == 0 then return 0 end
  local names, used = {}, 0
  for i = 1, m do names[i] = got[2 * i - 1] end
  local all, had = call('HMGET', JOB, unpack(names)), call('HMGET', OWN, unpack(names))
  for i = 1, m do
    local rec, score = all[i], got[2 * i]
    -- An entry without a record (there should be none) is dropped.
    if rec then
      local key = waits and waits[target_of(rec)]
      if key then
        set_aside(key, score, names[i])
      elseif n < max then
        lease(names[i], score, rec, had[i])
      else
        break
      end
    end
    used, last = i, score
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
if aside > 0 then store_aside() end
if n > 0 then
  zadd(INF, leases)
  hset(OWN, owns)
end
local next = call('ZRANGE', source, 0, 0, 'WITHSCORES')[2] or ''
if next == '' and source ~= DUE then call('SREM', WAITS, wait_target(source)) end
save({next, last, aside, ids})
local left = samples(source, next, ARGV[16], tonumber(ARGV[15]))
return {0, clock, next, last, aside, ids, scores, recs, table.concat(heads), left}
