-- Samples by the number of tensor ranges that they set alone: candidates for a look, or for leaving out
with ranked as (
    select
        tensor_id, sample,
        max = max(max) over (partition by tensor_id) as has_max, min = min(min) over (partition by tensor_id) as has_min
    from samples
    where sample >= 0
),
alone as (
    select
        tensor_id, sample, has_max and count_if(has_max) over (partition by tensor_id) = 1 as sets_max,
        has_min and count_if(has_min) over (partition by tensor_id) = 1 as sets_min
    from ranked
),
counted as (
    select
        sample, count_if(sets_max) as sets_max, count_if(sets_min) as sets_min, count(*) as tensors
    from alone
    group by all
)
select c.sample, i.source, i.position, c.sets_max, c.sets_min, c.tensors, i.key
from counted c
left join inputs i on i.sample = c.sample
where c.sets_max + c.sets_min > 0
order by c.sets_max + c.sets_min desc, c.sample
