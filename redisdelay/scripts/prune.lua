#!lua flags=allow-oom
-- prune removes dead jobs that have been kept long enough. Their ids are free.
-- ARGV: 7 the time (us) at or before which they died, 8 max.
-- Result: {0, time, number removed}.
-- Cap:  256 jobs per call.
-- Repeat: the saved number is returned.
-- Allowed when Redis is out of memory: it frees some.
if saved then return {0, clock, cmsgpack.unpack(saved)} end

local ids = call('ZRANGE', DEAD, '-inf', ARGV[7], 'BYSCORE', 'LIMIT', 0, ARGV[8])
if #ids > 0 then
  call('ZREMRANGEBYRANK', DEAD, 0, #ids - 1)
  call('HDEL', JOB, unpack(ids))
  call('HDEL', OWN, unpack(ids))
end
save(#ids)
return {0, clock, #ids}
