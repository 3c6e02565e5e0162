#!lua flags=no-writes
-- get reads jobs by id. It changes nothing.
-- KEYS: as every script, wait keys included where they are known.
-- ARGV: 1 latest time known to the caller (us), 2 dedup window (us), then the
--       ids.
-- Result: per id a list: {"p" due | "w" set aside | "x" dead, score, record,
--       run state or ""}; {"r" running, end of the lease, record, run state or
--       "", tag, owner}; {"W", target} for a job that may be set aside and whose
--       wait key was not given; {"d" done | "c" cancelled, entry}; {"u"}.
--       Shorter than the ids when the records passed 1 MiB: ask for the rest.
-- Cap:  256 ids. For running jobs it looks through all leases of the shard once.
local call, sub, byte = redis.call, string.sub, string.byte
local waits = {}
for i = 12, #KEYS do waits[sub(KEYS[i], #KEYS[1] + 2)] = KEYS[i] end

local _, find_ended = ended_reader(tonumber(ARGV[1]), tonumber(ARGV[2]))

local function ended(id)
  local entry = find_ended(id)
  if entry then return {sub(entry, 1, 1), entry} end
  return {'u'}
end

local leases
local function lease_of(id)
  if not leases then
    leases = {}
    for _, member in ipairs(call('ZRANGE', KEYS[4], 0, -1)) do leases[sub(member, 1, -9)] = member end
  end
  return leases[id]
end

local function get(id)
  local rec = call('HGET', KEYS[3], id)
  if not rec then return ended(id) end
  local own = call('HGET', KEYS[5], id) or ''
  local score = call('ZSCORE', KEYS[2], id)
  if score then return {'p', score, rec, own} end
  score = call('ZSCORE', KEYS[7], id)
  if score then return {'x', score, rec, own} end
  local target = sub(rec, 23, 22 + byte(rec, 22))
  score = waits[target] and call('ZSCORE', waits[target], id)
  if score then return {'w', score, rec, own} end
  local member = lease_of(id)
  if not member then return waits[target] and {'u'} or {'W', target} end
  local owner = call('HGET', KEYS[1], 'owner:' .. sub(member, -2)) or ''
  return {'r', call('ZSCORE', KEYS[4], member), rec, own, sub(member, -8), owner}
end

local out, bytes = {}, 0
for i = 1, #ARGV - 2 do
  if bytes > 1048576 then break end
  out[i] = get(ARGV[i + 2])
  bytes = bytes + #(out[i][3] or '')
end
return out
