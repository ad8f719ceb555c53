-- Warnings and decisions of every stage
select severity, stage, fit, layer, sample, message
from events
order by case severity when 'error' then 0 when 'warn' then 1 else 2 end
