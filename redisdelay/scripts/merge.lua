#!lua
-- merge takes jobs over in the state that another store has them in, or finds
-- that what is here is better.
-- ARGV: 7 cap of a done hash, 8 cap of a fin string in bytes, 9 field of meta
--       that lists what was taken, 10 "a" to add to that list, 11 one state per
--       job: p pending, r running, x dead, d done, c cancelled; 12 one digit per
--       job, the sum of 1 for an offer, 2 for one that replaces, 4 for one that
--       was taken before, 8 for one that cannot have been here (as a character
--       from "0" on); 13 what the list gets when all are taken; 14 number of
--       the call since which the 4s are known: a Redis that does not have it
--       has lost data, and they do not count; then of each job its id and its
--       record (d c: its entry of a done hash); then of each the score and
--       member of its sorted set (d c: the member is its last lease); then of
--       each its run state or ""; then of each its owner or "".
-- Result: {0, time, codes, targets}. One letter per job: m merged, k kept, j
--       joined, b busy, w may be set aside for the target in the list, a flat
--       one of (index, target): ask again with that wait key.
-- Cap:  256 jobs of different ids and 1 MiB per call.
-- Repeat: the saved codes are returned.
-- Refused by Redis when it is out of memory, but the same script is there with
--       another first line for calls of d and c alone.
if saved then return {0, clock, unpack(cmsgpack.unpack(saved))} end

local states, options = ARGV[11], ARGV[12]
local n = #states
local OVER = {d = true, c = true}
local IDS, SETS, OWNS = 14, 14 + 2 * n, 14 + 4 * n
local function body_of(i) return ARGV[IDS + 2 * i] end
local function score_of(i) return ARGV[SETS + 2 * i - 1] end
local function member_of(i) return ARGV[SETS + 2 * i] end
local function own_of(i) return ARGV[OWNS + i] end
local function new_owner_of(i) return ARGV[OWNS + n + i] end
local list_known = tonumber(meta[2] and sub(meta[2], 1, 16) or 0) >= tonumber(ARGV[14])
local function option(i, bit) return math.floor((byte(options, i) - 48) / bit) % 2 == 1 end

local ids = {}
for i = 1, n do ids[i] = ARGV[IDS + 2 * i - 1] end
local have, owns = call('HMGET', JOB, unpack(ids)), call('HMGET', OWN, unpack(ids))
local waits = wait_keys()

-- find_fins looks for many ids in the fin strings at once. Two characters of an
-- id tell mostly that it is not wanted.
local function find_fins(want, found)
  local likely = {}
  for id in pairs(want) do likely[256 * byte(id, 3) + byte(id, 4)] = true end
  for key = FIN, FIN + 1 do
    local all, at = call('GET', KEYS[key]) or '', 1
    while at < #all do
      local high, low, _, _, c, d = byte(all, at, at + 5)
      local size = 256 * high + low
      if likely[256 * c + d] then
        local i = want[sub(all, at + 2, at + 13)]
        if i then found[i] = still_known(sub(all, at + 14, at + 13 + size)) end
      end
      at = at + 14 + size
    end
  end
end

-- find_all finds the entries of those that ended. In fin, FEW_FINS are found
-- sooner one by one.
local FEW_FINS = 24
local function find_all()
  local found, want, wanted = {}, {}, 0
  local ended0, ended1 = {}, {}
  if call('EXISTS', DONE0, DONE1) > 0 then
    ended0, ended1 = call('HMGET', DONE0, unpack(ids)), call('HMGET', DONE1, unpack(ids))
  end
  for i = 1, n do
    if not have[i] then
      found[i] = still_known(ended0[i]) or still_known(ended1[i]) or nil
      if not found[i] and #ids[i] == 12 and not option(i, 8) then want[ids[i]], wanted = i, wanted + 1 end
    end
  end
  if wanted > FEW_FINS then
    find_fins(want, found)
  else
    for id, i in pairs(want) do found[i] = find_ended(id) end
  end
  return found
end
local ended = find_all()

-- all_new reports whether all jobs are pending and nothing is known of any.
local function all_new()
  if string.find(states, '[^p]') or next(ended) then return false end
  for i = 1, n do
    if have[i] or option(i, 4) and list_known then return false end
  end
  return true
end

-- locate says where a living job is: 'd' due, 'x' dead, 'w' set aside, 'r'
-- running; nil when it may be set aside and its wait key was not given.
local function locate(id, rec)
  if call('ZSCORE', DUE, id) then return 'd' end
  if call('ZSCORE', DEAD, id) then return 'x' end
  local target = target_of(rec)
  if not waits[target] then return call('SISMEMBER', WAITS, target) == 0 and 'r' or nil end
  return call('ZSCORE', waits[target], id) and 'w' or 'r'
end

-- drop_lease takes a lease out, and reports whether there was one.
local function drop_lease(lease)
  if call('ZREM', INF, lease) == 0 then return false end
  call('HDEL', OWNERS, lease_id(lease))
  return true
end

local function take_out(where, id, rec)
  if where == 'd' then
    call('ZREM', DUE, id)
  elseif where == 'x' then
    call('ZREM', DEAD, id)
  elseif where == 'w' then
    local target = target_of(rec)
    call('ZREM', waits[target], id)
    if call('EXISTS', waits[target]) == 0 then call('SREM', WAITS, target) end
  else
    local lease = lease_of(id)
    if lease then drop_lease(lease) end
  end
end

-- What is written at the end, at once.
local records, runs, fins, gone, owners = {}, {}, {}, {}, {}
local sets = {p = {}, r = {}, x = {}}
local room = tonumber(ARGV[7]) - call('HLEN', KEYS[8 + gen])

local function push2(list, a, b)
  local k = #list
  list[k + 1], list[k + 2] = a, b
end

local function forget_ended(id)
  call('HDEL', DONE0, id)
  call('HDEL', DONE1, id)
end

-- store gives the job the state that the other store has it in.
local function store(i)
  push2(records, ids[i], body_of(i))
  local state = sub(states, i, i)
  push2(sets[state], score_of(i), member_of(i))
  if state == 'r' and not stands_for(sub(member_of(i), -2), new_owner_of(i)) then
    push2(owners, ids[i], sub(member_of(i), -8) .. new_owner_of(i))
  end
  if own_of(i) ~= '' then
    push2(runs, ids[i], own_of(i))
  elseif owns[i] then
    gone[#gone + 1] = ids[i]
  end
end

-- finish remembers that the job ended, and removes what lives under its id.
local function finish(i)
  local id, entry = ids[i], body_of(i)
  if have[i] then
    call('HDEL', JOB, id)
    call('HDEL', OWN, id)
  end
  if sub(states, i, i) == 'd' and byte(entry, 38) == 49 and #id == 12 then
    fins[#fins + 1] = struct.pack('>I2', #entry) .. id .. entry
  elseif room > 0 then
    room = room - 1
    call('HSET', KEYS[8 + gen], id, entry)
  end
end

-- newer compares incarnations, of 8 bytes.
local function newer(a, b) return struct.unpack('>I8', a) > struct.unpack('>I8', b) end

local function first_token(target) return string.match(target, '^[^.]*') end

-- against_same decides about a job that lives here, too.
local function against_same(i, state, rec)
  local id = ids[i]
  if OVER[state] then
    if not drop_lease(member_of(i)) then
      local where = locate(id, rec)
      if not where then return 'w', target_of(rec) end
      take_out(where, id, rec)
    end
    finish(i)
    return 'm'
  end
  local own = own_of(i)
  if state ~= 'r' and rec == body_of(i) and own == (owns[i] or '') then return 'k' end
  local here = read_tries(owns[i])
  local there = own == '' and 0 or read_tries(own)
  if state == 'r' then there = there + 1 end
  if here > there then return 'k' end
  local where = locate(id, rec)
  if not where then return 'w', target_of(rec) end
  if where == 'r' and here + 1 > there then return 'k' end
  take_out(where, id, rec)
  store(i)
  return 'm'
end

-- against_other decides when another job of the id lives.
local function against_other(i, state, rec, inc, replace)
  local over = OVER[state]
  local target = over and sub(body_of(i), 39) or target_of(body_of(i))
  if first_token(target) ~= first_token(target_of(rec)) then return over and 'k' or 'b' end
  if not newer(inc, sub(rec, 2, 9)) then
    -- It was put here after the other store's job: it must not go.
    return over and 'k' or state == 'r' and 'b' or 'j'
  end
  if not (over or replace or state == 'r') then return 'j' end
  local where = locate(ids[i], rec)
  if not where then return 'w', target_of(rec) end
  if where == 'r' then return 'b' end
  take_out(where, ids[i], rec)
  if over then
    finish(i)
    return 'j'
  end
  store(i)
  return 'm'
end

-- against_ended decides when another job of the id has ended.
local function against_ended(i, state, inc, old, offer)
  if (OVER[state] or offer) and not newer(inc, old) then return 'k' end
  forget_ended(ids[i])
  if OVER[state] then finish(i) else store(i) end
  return 'm'
end

local function decide(i)
  local state, offer, replace, taken = sub(states, i, i), option(i, 1), option(i, 2), option(i, 4) and list_known
  local inc = OVER[state] and sub(body_of(i), 10, 17) or sub(body_of(i), 2, 9)
  local rec, was = have[i], ended[i]
  if rec and sub(rec, 2, 9) == inc then
    if offer and not OVER[state] then return 'k' end
    return against_same(i, state, rec)
  end
  if taken or was and sub(was, 10, 17) == inc then return 'k' end
  if rec then
    if offer then return 'k' end
    return against_other(i, state, rec, inc, replace)
  end
  if was then return against_ended(i, state, inc, sub(was, 10, 17), offer) end
  if OVER[state] then finish(i) else store(i) end
  return 'm'
end

local before = ARGV[10] == 'a' and call('HGET', META, ARGV[9]) or ''
local function done(codes, targets, list)
  call('HSET', META, ARGV[9], before .. list)
  save({codes, targets})
  return {0, clock, codes, targets}
end

if all_new() then
  hset(JOB, {unpack(ARGV, IDS + 1, SETS)})
  zadd(DUE, {unpack(ARGV, SETS + 1, OWNS)})
  for i = 1, n do
    if own_of(i) ~= '' then push2(runs, ids[i], own_of(i)) end
  end
  if #runs > 0 then hset(OWN, runs) end
  return done(string.rep('m', n), {}, ARGV[13])
end

local codes, targets, list = {}, {}, {}
for i = 1, n do
  local code, target = decide(i)
  codes[i] = code
  if code == 'w' then
    push2(targets, i, target)
  elseif code ~= 'b' and not OVER[sub(states, i, i)] then
    list[#list + 1] = string.char(#ids[i]) .. ids[i] .. sub(body_of(i), 2, 9)
  end
end

if #records > 0 then hset(JOB, records) end
if #runs > 0 then hset(OWN, runs) end
if #gone > 0 then call('HDEL', OWN, unpack(gone)) end
if #sets.p > 0 then zadd(DUE, sets.p) end
if #sets.r > 0 then zadd(INF, sets.r) end
if #owners > 0 then hset(OWNERS, owners) end
if #sets.x > 0 then zadd(DEAD, sets.x) end
if #fins > 0 then
  if call('STRLEN', KEYS[FIN + fin]) >= tonumber(ARGV[8]) then turn_fin() end
  call('APPEND', KEYS[FIN + fin], table.concat(fins))
end
return done(table.concat(codes), targets, table.concat(list))
