#!lua flags=allow-oom
-- settle ends, renews or gives back deliveries whose run state begins with the
-- head given: incarnation 8 bytes, attempt 4, nonce 8.
-- ARGV: 7 now (us), 8 cap of a done hash, 9 of a fin hash, 10 one operation per
--       settlement: c complete, g complete a generated id, t retry, l release,
--       w set aside, b bury, e extend; 11 the heads; then the ids; then the
--       operations' arguments in order: c g the entry to remember, "" when the
--       caller does not know it; t l e a time; w a time and the number of its
--       wait key (from 1); b the reason.
-- Result: {0, time, exceptions}, a flat list of (index, code) for what was not
--       settled: r the same completion came before, s stale, u unknown.
-- Cap:  256 settlements of different ids per call.
-- Repeat: the saved exceptions are returned.
-- Allowed when Redis is out of memory: settling is what frees it.
if saved then return {0, clock, cmsgpack.unpack(saved)} end

local ops, heads = ARGV[10], ARGV[11]
local n = #ops
local owns = call('HMGET', OWN, unpack(ARGV, 12, 11 + n))
local arg = 11 + n

local complete, chosen, generated = {}, {}, {}
local leave, owners, due, dead, extend, wait = {}, {}, {}, {}, {}, {}
local failed = {}

local function push2(list, a, b)
  local k = #list
  list[k + 1], list[k + 2] = a, b
end

-- entry is what to remember of a completed job; the record knows it too.
local function entry(id, own, given)
  if given ~= '' then return given end
  return ended_entry('d', sub(own, 1, 20), struct.pack('>I8', tonumber(ARGV[7])), call('HGET', JOB, id))
end

-- idle ends a lease: the job is pending, due again at that time.
local function idle(id, own, attempt, at)
  leave[#leave + 1] = id
  push2(owners, id, sub(own, 1, 8) .. attempt .. NO_NONCE .. sub(own, 21, 24) .. struct.pack('>I8', tonumber(at)))
end

-- uncharged is the attempt before the lease's.
local function uncharged(own) return struct.pack('>I4', struct.unpack('>I4', own, 9) - 1) end

local settle = {
  [116] = function(id, own, at) -- t
    idle(id, own, sub(own, 9, 12), at)
    push2(due, at, id)
  end,
  [108] = function(id, own, at) -- l
    idle(id, own, uncharged(own), at)
    push2(due, at, id)
  end,
  [119] = function(id, own, at, number) -- w
    local key = KEYS[FIRST_WAIT - 1 + number]
    idle(id, own, uncharged(own), at)
    wait[key] = wait[key] or {}
    push2(wait[key], at, id)
  end,
  [98] = function(id, own, reason) -- b
    leave[#leave + 1] = id
    push2(owners, id, sub(own, 1, 12) .. NO_NONCE .. sub(own, 21, 24) .. reason)
    push2(dead, ARGV[7], id)
  end,
  [101] = function(id, _, at) push2(extend, at, id) end, -- e
}

local from, ended, ends = 1, 0, 0
for i = 1, n do
  local op, own, id = byte(ops, i), owns[i], ARGV[11 + i]
  local to = from + 19
  if not own or sub(own, 1, 20) ~= sub(heads, from, to) then
    failed[#failed + 1] = i
  elseif op == 103 then
    ended = ended + 1
    complete[ended] = id
    generated[ends + 1], generated[ends + 2] = id, entry(id, own, ARGV[arg + 1])
    ends = ends + 2
  elseif op == 99 then
    ended = ended + 1
    complete[ended] = id
    push2(chosen, id, entry(id, own, ARGV[arg + 1]))
  else
    settle[op](id, own, ARGV[arg + 1], ARGV[arg + 2])
  end
  from = to + 1
  if op == 119 then arg = arg + 2 else arg = arg + 1 end
end

if #chosen > 0 and #chosen / 2 + call('HLEN', KEYS[8 + gen]) <= tonumber(ARGV[8]) then
  hset(KEYS[8 + gen], chosen)
end
if #generated > 0 then
  if call('HLEN', KEYS[FIN + fin]) >= tonumber(ARGV[9]) then turn_fin() end
  hset(KEYS[FIN + fin], generated)
end
if #complete > 0 then
  call('HDEL', JOB, unpack(complete))
  call('HDEL', OWN, unpack(complete))
  call('ZREM', INF, unpack(complete))
end
if #leave > 0 then call('ZREM', INF, unpack(leave)) end
if #owners > 0 then hset(OWN, owners) end
if #due > 0 then zadd(DUE, due) end
if #dead > 0 then zadd(DEAD, dead) end
if #extend > 0 then call('ZADD', INF, unpack(extend)) end
for key, list in pairs(wait) do
  zadd(key, list)
  call('SADD', WAITS, wait_target(key))
end

local out = {}
for _, i in ipairs(failed) do
  local id, code = ARGV[11 + i], 'u'
  local ended = find_ended(id)
  if ended then
    local op = byte(ops, i)
    local same = byte(ended) == 100 and sub(ended, 2, 21) == sub(heads, 20 * i - 19, 20 * i)
    code = same and (op == 99 or op == 103) and 'r' or 's'
  elseif call('HEXISTS', JOB, id) == 1 then
    code = 's'
  end
  push2(out, i, code)
end
save(out)
return {0, clock, out}
