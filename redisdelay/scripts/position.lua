-- first_after returns the rank of the first entry of a set that is behind a
-- position (score, id), by binary search: thousands of ids may share one score.
local function first_after(set, score, id)
  -- after reports whether a follows b, byte by byte as sorted sets do ("<" would
  -- follow the locale).
  local function after(a, b)
    for i = 1, math.min(#a, #b) do
      local x, y = string.byte(a, i), string.byte(b, i)
      if x ~= y then return x > y end
    end
    return #a > #b
  end

  local low = redis.call('ZCOUNT', set, '-inf', '(' .. score)
  if id == '' then return low end
  local high = low + redis.call('ZCOUNT', set, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if after(redis.call('ZRANGE', set, middle, middle)[1], id) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end
