#!lua flags=allow-oom
-- reschedule gives pending jobs, or dead ones, another due time.
-- ARGV: 7 one mode per job: p pending, q requeue a dead one; then per job its
--       id, its guard (see single.lua), the time (us) and the time again as 8
--       bytes, big-endian.
-- Result: {0, time, codes}, as of cancel; f also for a dead job without q,
--       u for a pending one with it.
-- Cap:  256 jobs per call.
-- Repeat: the saved codes are returned.
-- Allowed when Redis is out of memory: no key grows.
if saved then return {0, clock, cmsgpack.unpack(saved)} end

local waits = wait_keys()

-- take checks that a job is where the mode wants it and takes it out.
local function take(id, rec, mode, own)
  local attempts = struct.pack('>I4', read_tries(own))
  local is_dead = call('ZSCORE', DEAD, id)
  if mode == 'p' and is_dead then return 'f', attempts end
  if mode == 'q' and not is_dead then
    -- There is no such dead job; but if it runs, that is the answer.
    local is = state_of(id, rec, waits)
    if is == 'p' then return 'u', '' end
    if not is then return 'w', target_of(rec) end
    return 'r', running_detail(id, read_tries(own) + 1)
  end
  local was = unindex(id, rec, waits)
  if was == 'r' then return 'r', running_detail(id, read_tries(own) + 1) end
  if not was then return 'w', target_of(rec) end
  return 'd', attempts
end

local function reschedule(mode, id, guard, at, bytes)
  local rec, code, detail = held(id, guard)
  if not rec then return code, detail end
  local own = call('HGET', OWN, id)
  code, detail = take(id, rec, mode, own)
  if code ~= 'd' then return code, detail end
  call('HSET', JOB, id, sub(rec, 1, 9) .. bytes .. sub(rec, 18))
  call('ZADD', DUE, at, id)
  if own then
    -- When it is requeued, the attempts so far become the base of the new budget.
    local attempts, base = read_tries(own)
    if mode == 'q' then base = attempts end
    call('HSET', OWN, id, tries(attempts, base, at))
  end
  return 'd', detail
end

local out = {}
for i = 1, #ARGV[7] do
  local k = #out
  out[k + 1], out[k + 2] = reschedule(sub(ARGV[7], i, i), unpack(ARGV, 4 + 4 * i, 7 + 4 * i))
end
save(out)
return {0, clock, out}
