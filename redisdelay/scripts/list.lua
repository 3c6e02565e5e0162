#!lua flags=no-writes
-- list reads entries of one sorted set behind a position (score, id). It
-- changes nothing.
-- KEYS: as every script, then the sorted set.
-- ARGV: 1 score and 2 member of the position ("" and "": the start), 3 limit, 4
--       target wanted or "", 5 where the id ends in a member (-1: with it).
-- Result: {done, ids, scores, last score seen, last id seen}; done is 1 when
--       the set has nothing behind the last one seen.
-- Cap:  1,000 entries seen; when a target is wanted 128 entries, or 1 MiB of records.
local call, byte, sub = redis.call, string.byte, string.sub
local set, limit, target = KEYS[13], tonumber(ARGV[3]), ARGV[4]
local MAX_SEEN, MAX_BYTES, CHUNK = 1000, 1048576, 100
-- Records may be large, so few are read at once.
if target ~= '' then MAX_SEEN, CHUNK = 128, 16 end

local rank = 0
if ARGV[1] ~= '' then rank = first_after(set, ARGV[1], ARGV[2]) end
local ids, scores, seen, bytes, done = {}, {}, 0, 0, 0
local last_score, last_id = ARGV[1], ARGV[2]

-- records reads the records of entries, if a target is wanted.
local function records(got)
  if target == '' or #got == 0 then return {} end
  local names = {}
  for i = 1, #got, 2 do names[#names + 1] = sub(got[i], 1, ARGV[5]) end
  return call('HMGET', KEYS[3], unpack(names))
end

local function wanted(rec)
  if target == '' then return true end
  if not rec then return false end
  bytes = bytes + #rec
  return sub(rec, 23, 22 + byte(rec, 22)) == target
end

while done == 0 and #ids < limit and seen < MAX_SEEN and bytes < MAX_BYTES do
  local got = call('ZRANGE', set, rank, rank + CHUNK - 1, 'WITHSCORES')
  if #got < 2 * CHUNK then done = 1 end
  local recs = records(got)
  for i = 1, #got, 2 do
    if #ids >= limit or bytes >= MAX_BYTES then
      done = 0
      break
    end
    rank, seen, last_id, last_score = rank + 1, seen + 1, got[i], got[i + 1]
    if wanted(recs[(i + 1) / 2]) then
      ids[#ids + 1], scores[#scores + 1] = got[i], got[i + 1]
    end
  end
end
return {done, ids, scores, last_score, last_id}
