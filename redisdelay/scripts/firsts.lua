#!lua flags=no-writes
-- firsts reads the first entry of sorted sets behind a position (score, id). It
-- changes nothing.
-- KEYS: as every script, then the sorted sets.
-- ARGV: 1 score and 2 member of the position ("" and "": the start).
-- Result: {ids, scores}, of each set; "" where it has none.
-- Cap:  as many sets as KEYS has, 256.
local ids, scores = {}, {}
for i = 13, #KEYS do
  local rank = 0
  if ARGV[1] ~= '' then rank = first_after(KEYS[i], ARGV[1], ARGV[2]) end
  local got = redis.call('ZRANGE', KEYS[i], rank, rank, 'WITHSCORES')
  ids[i - 12], scores[i - 12] = got[1] or '', got[2] or ''
end
return {ids, scores}
