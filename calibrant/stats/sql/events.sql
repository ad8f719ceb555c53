-- Warnings and decisions of every stage, the gravest first
select severity, stage, fit, layer, sample, message
from (select *, row_number() over () as place from events)
order by case severity when 'error' then 0 when 'warn' then 1 else 2 end, place
