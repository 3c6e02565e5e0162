#!lua flags=allow-oom
-- reschedule gives pending jobs, or dead ones, another due time.
-- ARGV: 7 one mode per job: p pending, q requeue a dead one; then per job its
--       id, the time (us) and the time again as 8 bytes, big-endian.
-- Result: {0, time, codes}, as of cancel; f also for a dead job without q,
--       u for a pending one with it.
-- Cap:  256 jobs per call.
-- Repeat: the saved codes are returned.
-- Allowed when Redis is out of memory: no key grows.
if saved then return {0, clock, cmsgpack.unpack(saved)} end

local waits = wait_keys()

-- take checks that a job is where the mode wants it and takes it out.
local function take(id, rec, mode, attempt)
  local is_dead = call('ZSCORE', DEAD, id)
  if mode == 'q' and not is_dead then return 'u', '' end
  if mode == 'p' and is_dead then return 'f', attempt end
  if not unindex(id, rec, waits) then return 'w', target_of(rec) end
  return 'd', attempt
end

local function reschedule(mode, id, at, bytes)
  local rec, own = call('HGET', JOB, id), call('HGET', OWN, id)
  if not rec then
    local ended = find_ended(id)
    if not ended then return 'u', '' end
    return 'f', sub(ended, 10, 13)
  end
  if call('ZSCORE', INF, id) then
    return 'r', sub(own, 9, 12) .. sub(own, 25)
  end
  local attempt = own and sub(own, 9, 12) or '\0\0\0\0'
  local code, detail = take(id, rec, mode, attempt)
  if code ~= 'd' then return code, detail end
  call('HSET', JOB, id, sub(rec, 1, 9) .. bytes .. sub(rec, 18))
  call('ZADD', DUE, at, id)
  if own then
    -- When it is requeued, the attempts so far become the base of the new budget.
    local base = mode == 'q' and attempt or sub(own, 21, 24)
    call('HSET', OWN, id, sub(own, 1, 8) .. attempt .. NO_NONCE .. base .. bytes)
  end
  return 'd', attempt
end

local out = {}
for i = 1, #ARGV[7] do
  local k = #out
  out[k + 1], out[k + 2] = reschedule(sub(ARGV[7], i, i), ARGV[5 + 3 * i], ARGV[6 + 3 * i], ARGV[7 + 3 * i])
end
save(out)
return {0, clock, out}
