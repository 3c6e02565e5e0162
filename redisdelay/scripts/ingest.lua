#!lua
-- ingest stores a batch of jobs as pending.
-- ARGV: 7 one mode per job: g an id minted for this call, G a generated id
--       that is put again, c a chosen id, r a chosen id that replaces; then id
--       and record of each job, then score and id of each.
-- Result: {0, time, exceptions}, a flat list of (index, code, detail) for jobs
--       that were not simply stored: d duplicate (the first one's due, 8
--       bytes), x lives under another first token, r replace met a running
--       job, c collision of a generated id, w replace met a job set aside
--       (its target): put it again with that wait key.
-- Cap:  256 jobs and 1 MiB per call; the job that passes the limit is the last.
-- Repeat: a job stored under its id and incarnation before, or ended since, is
--       left as it is and counts as stored.
-- Refused by Redis when it is out of memory.
if saved then return {0, clock, cmsgpack.unpack(saved)} end

local modes = ARGV[7]
local n = #modes
local ids = {}
for i = 1, n do ids[i] = ARGV[6 + 2 * i] end

local function none_of(list)
  for i = 1, n do
    if list[i] then return false end
  end
  return true
end

-- What is known of the ids. Mostly nothing: then the batch is stored as it came.
local have = call('HMGET', JOB, unpack(ids))
local ended0, ended1 = {}, {}
if string.find(modes, '[^g]') and call('EXISTS', DONE0, DONE1) > 0 then
  ended0, ended1 = call('HMGET', DONE0, unpack(ids)), call('HMGET', DONE1, unpack(ids))
end
if none_of(have) and none_of(ended0) and none_of(ended1) and not string.find(modes, 'G', 1, true) then
  hset(JOB, {unpack(ARGV, 8, 7 + 2 * n)})
  zadd(DUE, {unpack(ARGV, 8 + 2 * n, 7 + 4 * n)})
  save({})
  return {0, clock, {}}
end

local function first_token(rec) return string.match(target_of(rec), '^[^.]*') end

local waits = wait_keys()

-- against_living decides about a job whose id lives: true to store it, or
-- false and an exception.
local function against_living(mode, id, rec, old)
  if sub(old, 2, 9) == sub(rec, 2, 9) then return false end
  if mode == 'g' or mode == 'G' then return false, 'c', '' end
  if first_token(old) ~= first_token(rec) then return false, 'x', '' end
  if mode ~= 'r' then return false, 'd', sub(old, 10, 17) end
  local was = unindex(id, old, waits)
  if was == 'r' then return false, 'r', '' end
  if not was then return false, 'w', target_of(old) end
  call('HDEL', OWN, id)
  return true
end

-- against_ended does so for a job whose id ended within the dedup window.
local function against_ended(mode, id, rec, ended)
  if sub(ended, 10, 17) == sub(rec, 2, 9) then return false end
  if mode == 'c' and byte(ended) == 100
    and string.match(sub(ended, 39), '^[^.]*') == first_token(rec) then
    return false, 'd', sub(ended, 30, 37)
  end
  call('HDEL', DONE0, id)
  call('HDEL', DONE1, id)
  return true
end

local out, records, scores = {}, {}, {}
for i = 1, n do
  local id, rec, mode = ids[i], ARGV[7 + 2 * i], sub(modes, i, i)
  local store, code, detail = true, nil, nil
  if have[i] then
    store, code, detail = against_living(mode, id, rec, have[i])
  elseif mode ~= 'g' then
    local ended = mode == 'G' and find_ended(id) or still_known(ended0[i]) or still_known(ended1[i])
    if ended then store, code, detail = against_ended(mode, id, rec, ended) end
  end
  if store then
    local k = #records
    records[k + 1], records[k + 2] = id, rec
    scores[k + 1], scores[k + 2] = ARGV[6 + 2 * n + 2 * i], id
  elseif code then
    local k = #out
    out[k + 1], out[k + 2], out[k + 3] = i, code, detail
  end
end
if #records > 0 then
  hset(JOB, records)
  zadd(DUE, scores)
end
save(out)
return {0, clock, out}
