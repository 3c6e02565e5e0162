#!lua flags=no-writes
-- get reads jobs by id. It changes nothing.
-- KEYS: as every script, wait keys included where they are known.
-- ARGV: 1 latest time known to the caller (us), 2 dedup window (us), 3 "i" when
--       what follows are ids, "l" when they are leases; one that is not held any
--       more is {"u"}.
-- Result: per id a list: {"p" due | "w" set aside | "x" dead, score, record,
--       run state or ""}; {"r" running, end of the lease, record, run state or
--       "", tag, owner}; {"W", target} for a job that may be set aside and whose
--       wait key was not given; {"d" done | "c" cancelled, entry}; {"u"}.
--       Shorter than the ids when there were more than the cap: ask for the rest.
-- Cap:  96 ids, or 1 MiB of records. For running jobs of which it has only the id it looks through all
--       leases of the shard, see lease.lua.
local call, sub, byte = redis.call, string.sub, string.byte
local waits = {}
for i = 13, #KEYS do waits[sub(KEYS[i], #KEYS[1] + 2)] = KEYS[i] end

local _, find_ended = ended_reader(tonumber(ARGV[1]), tonumber(ARGV[2]))

local function ended(id)
  local entry = find_ended(id)
  if entry then return {sub(entry, 1, 1), entry} end
  return {'u'}
end

local out, bytes = {}, 0
local function add(result)
  out[#out + 1] = result
  bytes = bytes + #(result[3] or '')
end

-- elsewhere is the job of an id with a record that is not due.
local function elsewhere(id, rec, own)
  local score = call('ZSCORE', KEYS[7], id)
  if score then return {'x', score, rec, own} end
  local target = sub(rec, 23, 22 + byte(rec, 22))
  score = waits[target] and call('ZSCORE', waits[target], id)
  if score then return {'w', score, rec, own} end
  local lease = lease_of(id)
  if not lease then return waits[target] and {'u'} or {'W', target} end
  return {'r', call('ZSCORE', KEYS[4], lease), rec, own, sub(lease, -8), owner_of(lease)}
end

-- There are many, and most are due, so these read them at once.
local function add_ids(ids)
  local scores, recs = call('ZMSCORE', KEYS[2], unpack(ids)), call('HMGET', KEYS[3], unpack(ids))
  local owns = call('HMGET', KEYS[5], unpack(ids))
  for i, id in ipairs(ids) do
    local rec, own = recs[i], owns[i] or ''
    if not rec then
      add(ended(id))
    elseif scores[i] then
      add({'p', scores[i], rec, own})
    else
      add(elsewhere(id, rec, own))
    end
  end
end

local function add_leases(leases)
  local ids = {}
  for i, lease in ipairs(leases) do ids[i] = sub(lease, 1, -9) end
  local ends, recs = call('ZMSCORE', KEYS[4], unpack(leases)), call('HMGET', KEYS[3], unpack(ids))
  local owns, entries = call('HMGET', KEYS[5], unpack(ids)), call('HMGET', KEYS[12], unpack(ids))
  for i, lease in ipairs(leases) do
    local held = ends[i] and recs[i]
    add(held and {'r', ends[i], recs[i], owns[i] or '', sub(lease, -8), owner_in(lease, entries[i])} or {'u'})
  end
end

-- Records may be large, so few are read at once.
local CHUNK, MAX, MAX_BYTES = 16, 96, 1048576
local add_all = ARGV[3] == 'l' and add_leases or add_ids
for i = 4, #ARGV, CHUNK do
  if bytes > MAX_BYTES or #out >= MAX then break end
  add_all({unpack(ARGV, i, math.min(i + CHUNK - 1, #ARGV))})
end
return out
