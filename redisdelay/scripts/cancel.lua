#!lua flags=allow-oom
-- cancel removes pending and dead jobs.
-- ARGV: 7 now (us), 8 cap of a done hash, then per job its id, its guard (see
--       single.lua) and the state that it must be in: p pending, x dead, or empty.
-- Result: {0, time, codes}, a flat list of (code, detail) per id: d removed, r
--       running, f ended before, or in the other state (the detail of these is
--       the attempt, 4 bytes, then the owner), u unknown, w set aside and not removed (the detail is
--       its target): ask again with that wait key.
-- Cap:  256 ids per call.
-- Repeat: the saved codes are returned.
-- Allowed when Redis is out of memory: it frees some.
if saved then return {0, clock, cmsgpack.unpack(saved)} end

local waits = wait_keys()
local room = tonumber(ARGV[8]) - call('HLEN', KEYS[8 + gen])

local function cancel(id, guard, state)
  local rec, code, detail = held(id, guard)
  if not rec then return code, detail end
  local attempts = read_tries(call('HGET', OWN, id))
  if state ~= '' then
    local is = state_of(id, rec, waits)
    if not is then return 'w', target_of(rec) end
    if is ~= 'r' and is ~= state then return 'f', struct.pack('>I4', attempts) end
  end
  local was = unindex(id, rec, waits)
  if was == 'r' then return 'r', running_detail(id, attempts + 1) end
  if not was then return 'w', target_of(rec) end
  call('HDEL', JOB, id)
  call('HDEL', OWN, id)
  if room > 0 then
    room = room - 1
    call('HSET', KEYS[8 + gen], id, ended_entry('c', NO_TAG, attempts, tonumber(ARGV[7]), rec))
  end
  return 'd', struct.pack('>I4', attempts)
end

local out = {}
for i = 9, #ARGV, 3 do
  local k = #out
  out[k + 1], out[k + 2] = cancel(ARGV[i], ARGV[i + 1], ARGV[i + 2])
end
save(out)
return {0, clock, out}
