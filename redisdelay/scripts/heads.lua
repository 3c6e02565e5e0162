#!lua flags=no-writes
-- heads reads what a claim would find first. It changes nothing.
-- KEYS: as every script, then the sorted set.
-- ARGV: 1 until (us), 2 step of the samples.
-- Result: {first score or "", samples}, see samples.lua.
local first = redis.call('ZRANGE', KEYS[13], 0, 0, 'WITHSCORES')[2] or ''
return {first, samples(KEYS[13], first, ARGV[1], tonumber(ARGV[2]))}
