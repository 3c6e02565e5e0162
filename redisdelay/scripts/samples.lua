-- samples describes a backlog: a flat list of (rank, score) of some of the
-- first entries of a set, spaced by step; after the last entry (count, "").
-- Empty when the first is not due by upto.
local function samples(set, first, upto, step)
  local out = {}
  if not first or first == '' or tonumber(first) > tonumber(upto) then return out end
  for _, times in ipairs({0.5, 1, 1.5, 2, 4, 8}) do
    local rank = math.floor(step * times)
    if rank > 0 then
      local score = redis.call('ZRANGE', set, rank, rank, 'WITHSCORES')[2]
      out[#out + 1] = score and rank or redis.call('ZCARD', set)
      out[#out + 1] = score or ''
      if not score then return out end
    end
  end
  return out
end
