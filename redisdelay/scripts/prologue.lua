-- Common beginning of every script that writes.
-- KEYS: meta due job inf own waits dead done:0 done:1 fin:0 fin:1
--       owner, then wait:<target>...
-- ARGV: 1 epoch, 2 deadline (Redis time, us), 3 "<kind>:<bridge>", 4 call
--       number (16 digits), 5 latest time known to the caller (us), 6 dedup
--       window (us); what follows is the script's own.
-- Result: {status, Redis time in us, ...}. Status 0: what the script says;
--       1: too late, nothing done; 2: another epoch, nothing done; 3: a newer
--       call of this kind by this bridge came first, nothing done.
-- Repeats: the last number and its saved result are kept in meta. The same
--       number again finds it in `saved` and must return it without acting.
local META, DUE, JOB, INF, OWN, WAITS, DEAD = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local DONE0, DONE1, FIN, OWNERS, FIRST_WAIT = KEYS[8], KEYS[9], 10, KEYS[12], 13
local call, sub, byte = redis.call, string.sub, string.byte
local clock
do
  local t = call('TIME')
  clock = t[1] * 1000000 + t[2]
end
if clock > tonumber(ARGV[2]) then return {1, clock} end
local meta = call('HMGET', META, 'epoch', ARGV[3], 'gen', 'rot', 'fin')
if meta[1] ~= ARGV[1] then return {2, clock} end
local saved
if meta[2] then
  local last = sub(meta[2], 1, 16)
  if last == ARGV[4] then
    saved = sub(meta[2], 17)
  elseif tonumber(last) > tonumber(ARGV[4]) then
    return {3, clock}
  end
end

local function save(result)
  call('HSET', META, ARGV[3], ARGV[4] .. cmsgpack.pack(result))
end

-- The ids that ended are kept in pairs of keys that take turns, chosen ids in
-- the done hashes, generated ones in the fin strings. gen is the done hash
-- written to; it is changed, and the older one dropped, once per window. fin
-- changes when it is full, and with the window.
local fin = tonumber(meta[5]) or 0
local function turn_fin()
  fin = 1 - fin
  call('UNLINK', KEYS[FIN + fin])
  call('HSET', META, 'fin', fin)
end
local gen = tonumber(meta[3]) or 0
do
  local rot, latest, window = tonumber(meta[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
  if not saved and latest > 0 and (not rot or latest - rot >= window) then
    gen = 1 - gen
    call('UNLINK', KEYS[8 + gen])
    if rot and latest - rot >= 2 * window then call('UNLINK', KEYS[9 - gen]) end
    call('HSET', META, 'gen', gen, 'rot', ARGV[5])
    turn_fin()
  end
end

-- Redis keeps a small set or hash as a list and walks it for every member. That
-- is slow for a batch, so a batch first makes it a real one, which it stays
-- until it is empty: a member of more than 64 bytes does that. No id is as long
-- as this one, and it is taken out again.
local SMALL, FEW = 128, 16
local function long() return string.rep('-', 256) end

-- text is a whole number as Redis takes it. Redis writes numbers that scripts
-- pass with 17 digits of precision, which takes ten times as long.
local function text(number) return string.format('%d', number) end

-- zadd adds a list of (score, member).
local function zadd(key, list)
  local convert = #list > 2 * FEW and call('ZCARD', key) <= SMALL
  if convert then call('ZADD', key, 0, long()) end
  call('ZADD', key, unpack(list))
  if convert then call('ZREM', key, long()) end
end

-- hset sets a list of (field, value).
local function hset(key, list)
  local convert = #list > 2 * FEW and call('HLEN', key) <= SMALL
  if convert then call('HSET', key, long(), '') end
  call('HSET', key, unpack(list))
  if convert then call('HDEL', key, long()) end
end

-- A lease is a member of inf: the id, then an 8-byte tag. Who knows the tag has
-- the present delivery. See lease.lua for its owner.
local NO_TAG = '\0\0\0\0\0\0\0\0'
local function lease_id(member) return sub(member, 1, -9) end

-- tries is the run state, 16 bytes: attempts that ended, those before the budget
-- began (4 bytes each) and the time of the next attempt (8).
local function tries(attempts, base, at)
  return struct.pack('>I4I4I8', attempts, base, at)
end

-- read_tries returns attempts and base of a run state, none of no state.
local function read_tries(own)
  if not own then return 0, 0 end
  return struct.unpack('>I4I4', own)
end

local function target_of(rec) return sub(rec, 23, 22 + byte(rec, 22)) end

-- wait_target is the target in the name of a wait key.
local function wait_target(key) return sub(key, #META + 2) end

local function wait_key(target) return sub(META, 1, -5) .. 'wait:' .. target end

-- wait_keys maps targets to the wait keys that this call was given.
local function wait_keys()
  local keys = {}
  for i = FIRST_WAIT, #KEYS do keys[wait_target(KEYS[i])] = KEYS[i] end
  return keys
end

-- An entry of a done hash: kind (d: done, c: cancelled), tag 8, incarnation 8,
-- attempt 4, when it ended 8, due 8, 1 for a generated id or else 0, target.
local function ended_entry(kind, tag, attempt, at, rec)
  local target = target_of(rec)
  local generated = math.floor(byte(rec, 23 + #target) / 4) % 2
  return kind .. tag .. sub(rec, 2, 9) .. struct.pack('>I4I8', attempt, at) .. sub(rec, 10, 17) .. generated .. target
end

local still_known, find_ended = ended_reader(tonumber(ARGV[5]), tonumber(ARGV[6]))

-- unindex takes a job that is not running out of the sorted set it is in:
-- 'd' due, 'x' dead, 'w' set aside, 'r' none, it is running; false when it may be
-- set aside and its wait key was not given.
local function unindex(id, rec, waits)
  if call('ZREM', DUE, id) == 1 then return 'd' end
  if call('ZREM', DEAD, id) == 1 then return 'x' end
  local key = waits[target_of(rec)]
  if not key then
    if call('SISMEMBER', WAITS, target_of(rec)) == 0 then return 'r' end
    return false
  end
  if call('ZREM', key, id) == 0 then return 'r' end
  if call('EXISTS', key) == 0 then call('SREM', WAITS, wait_target(key)) end
  return 'w'
end
