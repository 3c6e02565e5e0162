#!lua flags=allow-oom
-- settle ends, renews or gives back deliveries whose run state begins with the
-- head given: incarnation 8 bytes, attempt 4, nonce 8.
-- ARGV: 7 now (us), 8 cap of a done hash for chosen ids, 9 for generated ones,
--       10 one operation per settlement: c complete, g complete a generated
--       id, t retry, l release, w set aside, b bury, e extend; 11 the heads;
--       then the ids; then the operations' arguments in order: t l e a time,
--       w a time and the number of its wait key (from 1), b the reason.
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
local now = struct.pack('>I8', tonumber(ARGV[7]))

local complete, chosen, generated = {}, {}, {}
local leave, owners, due, dead, extend, wait = {}, {}, {}, {}, {}, {}
local idle, failed = {}, {}

local function push2(list, a, b)
  local k = #list
  list[k + 1], list[k + 2] = a, b
end

-- give_back makes a job pending again without the lease's attempt.
local function give_back(id, own)
  local attempt = struct.unpack('>I4', own, 9) - 1
  leave[#leave + 1] = id
  if attempt == 0 then
    idle[#idle + 1] = id
  else
    push2(owners, id, sub(own, 1, 8) .. struct.pack('>I4', attempt) .. NO_NONCE .. sub(own, 21, 24))
  end
end

local settle = {
  [99] = function(id, own) -- c
    complete[#complete + 1] = id
    push2(chosen, id, sub(own, 1, 20))
  end,
  [103] = function(id, own) -- g
    complete[#complete + 1] = id
    push2(generated, id, sub(own, 1, 20))
  end,
  [116] = function(id, own, at) -- t
    leave[#leave + 1] = id
    push2(owners, id, sub(own, 1, 12) .. NO_NONCE .. sub(own, 21, 24))
    push2(due, at, id)
  end,
  [108] = function(id, own, at) -- l
    give_back(id, own)
    push2(due, at, id)
  end,
  [119] = function(id, own, at, number) -- w
    local key = KEYS[9 + number]
    give_back(id, own)
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
local arguments = {[99] = 0, [103] = 0, [119] = 2}

for i = 1, n do
  local op, own = byte(ops, i), owns[i]
  if own and sub(own, 1, 20) == sub(heads, 20 * i - 19, 20 * i) then
    settle[op](ARGV[11 + i], own, ARGV[arg + 1], ARGV[arg + 2])
  else
    failed[#failed + 1] = i
  end
  arg = arg + (arguments[op] or 1)
end

-- remember keeps completed ids, given with their heads, as far as the cap
-- allows.
local function remember(list, cap)
  local n = math.min(#list / 2, cap - call('HLEN', KEYS[8 + gen]))
  if n < 1 then return end
  local ids, entries = {}, {}
  for i = 1, n do ids[i] = list[2 * i - 1] end
  local recs = call('HMGET', JOB, unpack(ids))
  for i = 1, n do push2(entries, ids[i], ended_entry('d', list[2 * i], now, recs[i])) end
  hset(KEYS[8 + gen], entries)
end

if #complete > 0 then
  remember(chosen, tonumber(ARGV[8]))
  remember(generated, tonumber(ARGV[9]))
  call('HDEL', JOB, unpack(complete))
  call('HDEL', OWN, unpack(complete))
  call('ZREM', INF, unpack(complete))
end
if #leave > 0 then call('ZREM', INF, unpack(leave)) end
if #idle > 0 then call('HDEL', OWN, unpack(idle)) end
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
