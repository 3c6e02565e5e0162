-- stands_for reports whether the last two bytes of a tag tell that the owner has
-- the lease. A free code is given to a bridge that needs one; workers get none,
-- there are too many. Codes that no lease has any more become free when there are
-- too many of them, or when two bridges need the same.
local MAX_CODES, SWEEP_EVERY = 64, 60000000

-- codes lists the fields of meta that give codes.
local function codes()
  local fields = {}
  for _, field in ipairs(call('HKEYS', META)) do
    if #field == 8 and sub(field, 1, 6) == 'owner:' then fields[#fields + 1] = field end
  end
  return fields
end

-- relied are the codes that leases of this call rely on; they are not in inf yet.
local relied = {}

-- sweep_codes frees what no lease relies on; a lease of the wanted code relies on it
-- unless it is in the owner hash. It looks through all leases, so not often.
local function sweep_codes(wanted)
  local last = call('HGET', META, 'swept')
  if last and clock - last < SWEEP_EVERY then return end
  call('HSET', META, 'swept', text(clock))
  local used = {}
  for _, lease in ipairs(call('ZRANGE', INF, 0, -1)) do
    local code = sub(lease, -2)
    if not used[code] and (code ~= wanted or call('HEXISTS', OWNERS, lease_id(lease)) == 0) then used[code] = true end
  end
  for _, field in ipairs(codes()) do
    local code = sub(field, -2)
    if not used[code] and not relied[code] then call('HDEL', META, field) end
  end
end

local function stands_for(code, owner)
  local field = 'owner:' .. code
  local has = call('HGET', META, field)
  if has == owner and owner ~= '' then
    relied[code] = true
    return true
  end
  if owner == '' or string.find(owner, '/', 1, true) then return false end
  if has or #codes() >= MAX_CODES then
    sweep_codes(code)
    if call('HEXISTS', META, field) == 1 or #codes() >= MAX_CODES then return false end
  end
  call('HSET', META, field, owner)
  relied[code] = true
  return true
end

