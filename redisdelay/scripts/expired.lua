#!lua flags=no-writes
-- expired reads deliveries whose lease has ended. It changes nothing.
-- KEYS: as every script.
-- ARGV: 1 now (us), 2 max.
-- Result: {next lease end left or "", leases, lease ends, records, run states,
--       owners}.
-- Cap:  256, and 1 MiB of records.
local call = redis.call
local got = call('ZRANGE', KEYS[4], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2] + 1, 'WITHSCORES')
local leases, ends, recs, owns, owners, bytes = {}, {}, {}, {}, {}, 0
local next = ''
for i = 1, #got, 2 do
  if #leases >= tonumber(ARGV[2]) or bytes > 1048576 then
    next = got[i + 1]
    break
  end
  local id = string.sub(got[i], 1, -9)
  local rec = call('HGET', KEYS[3], id)
  if rec then
    local k = #leases + 1
    leases[k], ends[k], recs[k], owns[k] = got[i], got[i + 1], rec, call('HGET', KEYS[5], id) or ''
    owners[k] = owner_of(got[i])
    bytes = bytes + #rec
  end
end
if next == '' then
  next = call('ZRANGE', KEYS[4], '(' .. ARGV[1], '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')[2] or ''
end
return {next, leases, ends, recs, owns, owners}
