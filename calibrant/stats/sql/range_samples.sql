-- Which samples set the range of a tensor, and what the range would be without the first of them
with ranked as (
    select
        tensor_id, sample, min, max,
        row_number() over (partition by tensor_id order by max desc nulls last, sample) as rank_max,
        row_number() over (partition by tensor_id order by min asc nulls last, sample) as rank_min
    from samples
)
select
    t.tensor_id, t.tensor,
    a.sample as max_sample, i1.source as max_source, a.max, b.max as max_without_it,
    c.sample as min_sample, i2.source as min_source, c.min, d.min as min_without_it
from tensors t
join ranked a on a.tensor_id = t.tensor_id and a.rank_max = 1
left join ranked b on b.tensor_id = t.tensor_id and b.rank_max = 2
join ranked c on c.tensor_id = t.tensor_id and c.rank_min = 1
left join ranked d on d.tensor_id = t.tensor_id and d.rank_min = 2
left join inputs i1 on i1.sample = a.sample
left join inputs i2 on i2.sample = c.sample
order by t.tensor_id
