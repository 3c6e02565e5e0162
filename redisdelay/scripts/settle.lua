#!lua flags=allow-oom
-- settle ends, renews or gives back deliveries, each named by its lease.
-- ARGV: 7 now (us), 8 cap of a done hash, 9 cap of a fin string in bytes;
--       10 number of known completions, 11 what to append to fin for those with
--       generated ids, 12 number of those with chosen ids, 13 number with runs
--       before; then of the known completions: the leases, the ids, (id, entry)
--       of those with chosen ids, the ids with runs before;
--       then one operation per other settlement: c complete, t retry, l release,
--       w set aside, W set aside a first attempt that is due as its record says,
--       s set aside with the attempt spared, L release likewise, b bury, e extend,
--       o own; then of each its lease and argument: c the attempt, t l L e a time,
--       w W s a time of 16 digits and the target, b the reason, o a time of 16
--       digits and the owner.
-- Result: {0, time, exceptions}, a flat list of (index, code) for what was not
--       settled, known completions first: r the same completion came before, s
--       stale, u unknown, t another worker has it.
-- Cap:  256 settlements of different ids per call.
-- Repeat: the saved exceptions are returned.
-- Allowed when Redis is out of memory: settling is what frees it.
if saved then return {0, clock, cmsgpack.unpack(saved)} end

-- Whether a lease may be in the owner hash. What this call adds there is of other
-- jobs than those that it ends.
local owned = call('EXISTS', OWNERS) == 1
local waits, now = wait_keys(), tonumber(ARGV[7])
local known, chosen, before = tonumber(ARGV[10]), tonumber(ARGV[12]), tonumber(ARGV[13])
local LEASES, IDS = 13, 13 + known
local ENTRIES = IDS + known
local BEFORE = ENTRIES + 2 * chosen
local OTHERS = BEFORE + before + 1
local out = {}

local function push2(list, a, b)
  local k = #list
  list[k + 1], list[k + 2] = a, b
end

-- refuse notes a settlement whose lease is not the present one. Why is looked up
-- at the end: by then no job is between two sets.
local refused = {}
local function refuse(i, member, completes)
  refused[#refused + 1] = {i, member, completes}
end

local function explain(i, member, completes)
  local id, code = lease_id(member), 'u'
  local ended = find_ended(id)
  if ended then
    code = completes and byte(ended) == 100 and sub(ended, 2, 9) == sub(member, -8) and 'r' or 's'
  elseif call('HEXISTS', JOB, id) == 1 then
    code = 's'
  end
  push2(out, i, code)
end

-- idle reports whether the job is in one of the sets of jobs that do not run.
-- The wait key is of this shard, but which one is only known here.
local function idle(id, rec)
  return call('ZSCORE', DUE, id) or call('ZSCORE', DEAD, id) or call('ZSCORE', wait_key(target_of(rec)), id)
end

-- remember_fin notes completed jobs with generated ids.
local function remember_fin(entries)
  if entries == '' then return end
  if call('STRLEN', KEYS[FIN + fin]) >= tonumber(ARGV[9]) then turn_fin() end
  call('APPEND', KEYS[FIN + fin], entries)
end

local function room(n) return n > 0 and n + call('HLEN', KEYS[8 + gen]) <= tonumber(ARGV[8]) end

-- complete_all is the common case: every lease was there.
local function complete_all()
  remember_fin(ARGV[11])
  if room(chosen) then hset(KEYS[8 + gen], {unpack(ARGV, ENTRIES + 1, BEFORE)}) end
  call('HDEL', JOB, unpack(ARGV, IDS + 1, ENTRIES))
  if owned then call('HDEL', OWNERS, unpack(ARGV, IDS + 1, ENTRIES)) end
  if before > 0 then call('HDEL', OWN, unpack(ARGV, BEFORE + 1, BEFORE + before)) end
end

-- sort_out is the other case: some leases were there and are gone now. Theirs
-- are the jobs that have a record and are nowhere else.
local function sort_out()
  local runs, entries, fins, at = {}, {}, {}, 1
  for _, member in ipairs(call('ZRANGE', INF, 0, -1)) do runs[lease_id(member)] = true end
  for i = 1, chosen do entries[ARGV[ENTRIES + 2 * i - 1]] = ARGV[ENTRIES + 2 * i] end
  while at < #ARGV[11] do
    local size = 14 + struct.unpack('>I2', ARGV[11], at)
    fins[sub(ARGV[11], at + 2, at + 13)] = sub(ARGV[11], at, at + size - 1)
    at = at + size
  end
  for i = 1, known do
    local id = ARGV[IDS + i]
    local rec = call('HGET', JOB, id)
    if rec and not runs[id] and not idle(id, rec) then
      remember_fin(fins[id] or '')
      if entries[id] and room(1) then call('HSET', KEYS[8 + gen], id, entries[id]) end
      call('HDEL', JOB, id)
      call('HDEL', OWN, id)
      call('HDEL', OWNERS, id)
    else
      refuse(i, ARGV[LEASES + i], true)
    end
  end
end

if known > 0 then
  if call('ZREM', INF, unpack(ARGV, LEASES + 1, IDS)) == known then
    complete_all()
  else
    sort_out()
  end
end

-- again makes a job pending. One that nobody had yet, due when its record says,
-- needs no run state.
local function again(id, at, charge, spare)
  local attempts, base = read_tries(call('HGET', OWN, id))
  base = base + (spare or 0)
  if attempts + charge > 0 or struct.unpack('>I8', call('HGET', JOB, id), 10) ~= tonumber(at) then
    call('HSET', OWN, id, tries(attempts + charge, base, at))
  end
end

-- set_aside notes a job for the wait key of its target; store_aside writes them,
-- one command a key.
local apart = {}
local function set_aside(id, at, target)
  apart[target] = apart[target] or {}
  push2(apart[target], at, id)
end

local function store_aside()
  for target, list in pairs(apart) do
    -- A wrong target would name a wait key that was not given.
    zadd(waits[target] or DUE, list)
    if waits[target] then call('SADD', WAITS, target) end
  end
end

-- The other settlements, one by one.
local settle = {
  c = function(id, attempt, member)
    local rec = call('HGET', JOB, id)
    local entry = ended_entry('d', sub(member, -8), attempt, now, rec)
    if byte(entry, 38) == 49 and #id == 12 then
      remember_fin(struct.pack('>I2', #entry) .. id .. entry)
    elseif room(1) then
      call('HSET', KEYS[8 + gen], id, entry)
    end
    call('HDEL', JOB, id)
    call('HDEL', OWN, id)
  end,
  t = function(id, at)
    again(id, at, 1)
    call('ZADD', DUE, at, id)
  end,
  L = function(id, at)
    again(id, at, 1, 1)
    call('ZADD', DUE, at, id)
  end,
  l = function(id, at)
    again(id, at, 0)
    call('ZADD', DUE, at, id)
  end,
  W = function(id, to) set_aside(id, sub(to, 1, 16), sub(to, 17)) end,
  w = function(id, to)
    again(id, sub(to, 1, 16), 0)
    set_aside(id, sub(to, 1, 16), sub(to, 17))
  end,
  s = function(id, to)
    again(id, sub(to, 1, 16), 1, 1)
    set_aside(id, sub(to, 1, 16), sub(to, 17))
  end,
  b = function(id, reason)
    local attempts, base = read_tries(call('HGET', OWN, id))
    call('HSET', OWN, id, tries(attempts + 1, base, 0) .. reason)
    call('ZADD', DEAD, ARGV[7], id)
  end,
}

local function worker_of(owner) return string.match(owner, '/(.+)') end

-- Settlements that leave the lease where it is return why they are refused.
local renew = {
  e = function(member, at) call('ZADD', INF, at, member) end,
  o = function(member, to)
    local owner = sub(to, 17)
    local worker = worker_of(owner_of(member))
    if worker and worker ~= worker_of(owner) then return 't' end
    call('ZADD', INF, sub(to, 1, 16), member)
    call('HSET', OWNERS, lease_id(member), sub(member, -8) .. owner)
  end,
}

for i = 1, #ARGV[OTHERS] do
  local op, member, argument = sub(ARGV[OTHERS], i, i), ARGV[OTHERS + 2 * i - 1], ARGV[OTHERS + 2 * i]
  if renew[op] then
    if call('ZSCORE', INF, member) then
      local code = renew[op](member, argument)
      if code then push2(out, known + i, code) end
    else
      refuse(known + i, member, false)
    end
  elseif call('ZREM', INF, member) == 1 then
    if owned then call('HDEL', OWNERS, lease_id(member)) end
    settle[op](lease_id(member), argument, member)
  else
    refuse(known + i, member, op == 'c')
  end
end
store_aside()
for _, r in ipairs(refused) do explain(r[1], r[2], r[3]) end
save(out)
return {0, clock, out}
