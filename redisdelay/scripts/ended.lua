-- ended_reader returns two functions about jobs that ended, as known at latest
-- (us) with a dedup window (us): still_known drops an entry that is past the
-- window; find_ended finds the entry of an id in done and fin.
local function ended_reader(latest, window)
  local function still_known(entry)
    local since = entry and latest - struct.unpack('>I8', entry, 22)
    return since and since < window and entry
  end

  -- fin strings hold entries behind their length (2 bytes) and their id (12).
  local function find_fin(id)
    if #id ~= 12 then return nil end
    for key = 10, 11 do
      local all = redis.call('GET', KEYS[key])
      local at = all and string.find(all, id, 1, true)
      while at do
        -- The text of an id may be part of a target, too.
        local size = at > 2 and struct.unpack('>I2', all, at - 2) or 0
        if size > 38 and size <= 293 and at + 11 + size <= #all and string.byte(all, at + 12) == 100 then
          return still_known(string.sub(all, at + 12, at + 11 + size))
        end
        at = string.find(all, id, at + 1, true)
      end
    end
  end

  return still_known, function(id)
    return still_known(redis.call('HGET', KEYS[8], id)) or still_known(redis.call('HGET', KEYS[9], id)) or find_fin(id)
  end
end

