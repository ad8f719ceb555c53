-- Channels out of balance: the greatest channel maximum over the median one, of data and of weights
with maxima as (
    select 'data' as role, tensor_id as id, channel, abs_max from channels
    union all
    select 'weight', layer_id, channel, abs_max from weights
),
spread as (
    select
        role, id, count(*) as channels, max(abs_max) as greatest, median(abs_max) as median,
        arg_max(channel, abs_max) as greatest_channel
    from maxima
    where abs_max is not null
    group by all
)
select
    coalesce(t.tensor, l.layer) as name, s.role,
    case when s.median > 0 then round(s.greatest / s.median, 2) when s.greatest > 0 then 'inf'::double end as imbalance,
    s.greatest_channel, s.greatest, s.median, s.channels
from spread s
left join tensors t on s.role = 'data' and t.tensor_id = s.id
left join layers l on s.role = 'weight' and l.layer_id = s.id
where s.channels > 1
order by imbalance desc nulls last, s.role, s.id
