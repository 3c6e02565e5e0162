-- A lease that its tag does not tell the owner of has an entry in the owner hash,
-- under its id: the tag (8 bytes) and the owner.

-- owner_in returns the owner of a lease, given the entry of its id or false.
-- owner_of looks for the entry itself.
-- lease_of returns the lease of a job of which only the id is known, nil where it
-- has none. If no worker has it, all leases of the shard are looked through.
local owner_in, owner_of, lease_of
do
  local call, sub = redis.call, string.sub
  local names = {}

  function owner_in(lease, entry)
    if entry and sub(entry, 1, 8) == sub(lease, -8) then return sub(entry, 9) end
    local code = sub(lease, -2)
    names[code] = names[code] or call('HGET', KEYS[1], 'owner:' .. code) or ''
    return names[code]
  end

  function owner_of(lease) return owner_in(lease, call('HGET', KEYS[12], sub(lease, 1, -9))) end

  local FEW_IDS, asked, all, by_id = 4, 0, nil, nil

  -- search finds the first few ids as they are asked for; for more it is worth to
  -- sort the leases by id.
  local function search(id)
    asked, all = asked + 1, all or call('ZRANGE', KEYS[4], 0, -1)
    if asked <= FEW_IDS then
      for _, lease in ipairs(all) do
        if sub(lease, 1, -9) == id then return lease end
      end
      return nil
    end
    if not by_id then
      by_id = {}
      for _, lease in ipairs(all) do by_id[sub(lease, 1, -9)] = lease end
    end
    return by_id[id]
  end

  function lease_of(id)
    local entry = call('HGET', KEYS[12], id)
    if entry and call('ZSCORE', KEYS[4], id .. sub(entry, 1, 8)) then return id .. sub(entry, 1, 8) end
    return search(id)
  end
end

-- running_detail is the attempt that runs, 4 bytes, and its owner.
local function running_detail(id, attempt)
  local lease = lease_of(id)
  return struct.pack('>I4', attempt) .. (lease and owner_of(lease) or '')
end

