#!lua flags=no-writes
-- get reads jobs by id. It changes nothing.
-- KEYS: as every script, wait keys included where they are known.
-- ARGV: 1 latest time known to the caller (us), 2 dedup window (us), then the
--       ids.
-- Result: per id a list: {"p" due | "w" set aside | "r" running | "x" dead,
--       score, record, run state or ""}; {"W", target} for a job set aside
--       whose wait key was not given; {"d" done | "c" cancelled, entry}; {"u"}.
--       Shorter than the ids when the records passed 1 MiB: ask for the rest.
-- Cap:  256 ids.
local call, sub, byte = redis.call, string.sub, string.byte
local waits = {}
for i = 12, #KEYS do waits[sub(KEYS[i], #KEYS[1] + 2)] = KEYS[i] end

local function still_known(entry)
  local since = entry and tonumber(ARGV[1]) - struct.unpack('>I8', entry, 22)
  return since and since < tonumber(ARGV[2]) and entry
end

local function get(id)
  local rec = call('HGET', KEYS[3], id)
  if not rec then
    for key = 8, 11 do
      local ended = still_known(call('HGET', KEYS[key], id))
      if ended then return {sub(ended, 1, 1), ended} end
    end
    return {'u'}
  end
  local own = call('HGET', KEYS[5], id) or ''
  local score = call('ZSCORE', KEYS[2], id)
  if score then return {'p', score, rec, own} end
  score = call('ZSCORE', KEYS[4], id)
  if score then return {'r', score, rec, own} end
  score = call('ZSCORE', KEYS[7], id)
  if score then return {'x', score, rec, own} end
  local target = sub(rec, 23, 22 + byte(rec, 22))
  score = waits[target] and call('ZSCORE', waits[target], id)
  if score then return {'w', score, rec, own} end
  return {'W', target}
end

local out, bytes = {}, 0
for i = 1, #ARGV - 2 do
  if bytes > 1048576 then break end
  out[i] = get(ARGV[i + 2])
  bytes = bytes + #(out[i][3] or '')
end
return out
