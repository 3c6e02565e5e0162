-- What scripts that change single jobs share. A guard is the incarnation, 8 bytes,
-- of the job that is meant, or empty: whatever job has the id.
-- held returns the record of a job that lives; else nil, the code and the detail to
-- answer: f it has ended, u it is not known, or the id is another one's.
-- state_of returns where a job that lives is: p pending, x dead, r running; false
-- when it may be set aside and its wait key was not given.
local function held(id, guard)
  local rec = call('HGET', JOB, id)
  if rec then
    if guard ~= '' and guard ~= sub(rec, 2, 9) then return nil, 'u', '' end
    return rec
  end
  local ended = find_ended(id)
  if not ended or guard ~= '' and guard ~= sub(ended, 10, 17) then return nil, 'u', '' end
  return nil, 'f', sub(ended, 18, 21)
end

local function state_of(id, rec, waits)
  if call('ZSCORE', DUE, id) then return 'p' end
  if call('ZSCORE', DEAD, id) then return 'x' end
  local key = waits[target_of(rec)]
  if key then return call('ZSCORE', key, id) and 'p' or 'r' end
  return call('SISMEMBER', WAITS, target_of(rec)) == 0 and 'r'
end

