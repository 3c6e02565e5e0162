#!lua flags=no-writes
-- upcoming reads jobs that are due soon, behind a position (score, id). It
-- changes nothing.
-- KEYS: as every script.
-- ARGV: 1 score and 2 member of the position, 3 time (us) before which they are
--       due, 4 limit.
-- Result: {done, ids, records, run states, last score seen, last id seen}; done
--       is 1 when no more are due by then.
-- Cap:  256 jobs, and 1 MiB of records.
local call, sub = redis.call, string.sub
local MAX_BYTES, CHUNK = 1048576, 32
local limit = tonumber(ARGV[4])
local rank = first_after(KEYS[2], ARGV[1], ARGV[2])
local due = call('ZCOUNT', KEYS[2], '-inf', '(' .. ARGV[3])
local ids, recs, owns, bytes = {}, {}, {}, 0
local last = ARGV[2]
while rank < due and #ids < limit and bytes < MAX_BYTES do
  local names = call('ZRANGE', KEYS[2], rank, math.min(rank + CHUNK, due, rank + limit - #ids) - 1)
  local all, had = call('HMGET', KEYS[3], unpack(names)), call('HMGET', KEYS[5], unpack(names))
  for i, id in ipairs(names) do
    rank, last = rank + 1, id
    if all[i] then
      local k = #ids + 1
      ids[k], recs[k], owns[k] = id, all[i], had[i] or ''
      bytes = bytes + #all[i]
    end
  end
end
local score = last ~= ARGV[2] and call('ZSCORE', KEYS[2], last) or ARGV[1]
return {rank >= due and 1 or 0, ids, recs, owns, score, last}
