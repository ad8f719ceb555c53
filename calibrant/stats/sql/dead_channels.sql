-- Channels of data and of weights that are dead (always 0) or constant (one value throughout)
with extremes as (
    select 'data' as role, tensor_id as id, channel, n, min, max from channels
    union all
    select 'weight', layer_id, channel, n, min, max from weights
),
counted as (
    select role, id, count(*) as channels from extremes group by all
),
still as (
    select
        role, id, case when min = 0 then 'dead' else 'constant' end as kind, count(*) as still_channels,
        list(channel order by channel) as numbers
    from extremes
    where min = max and n > 1
    group by all
)
select
    coalesce(t.tensor, l.layer) as name, s.role, s.kind, s.still_channels, c.channels,
    array_to_string(s.numbers[1:12], ' ') || case when s.still_channels > 12 then ' …' else '' end as which
from still s
join counted c on c.role = s.role and c.id = s.id
left join tensors t on s.role = 'data' and t.tensor_id = s.id
left join layers l on s.role = 'weight' and l.layer_id = s.id
order by s.still_channels / c.channels desc, s.role, s.id, s.kind desc
