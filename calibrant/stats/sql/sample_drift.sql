-- Drift across the samples: the last quarter against the first, greatest first; a shuffled data set has none
with numbered as (
    select
        tensor_id, sample, min, max, sum / nullif(n, 0) as mean,
        row_number() over (partition by tensor_id order by sample) as place,
        count(*) over (partition by tensor_id) as samples
    from samples
    where sample >= 0 and min is not null
),
quarters as (
    select *, place <= greatest(1, samples // 4) as is_first, place > samples - greatest(1, samples // 4) as is_last
    from numbered
    where samples > 1
),
compared as (
    select
        tensor_id, any_value(samples) as samples,
        avg(mean) filter (where is_first) as mean_first, avg(mean) filter (where is_last) as mean_last,
        avg(min) filter (where is_first) as min_first, avg(min) filter (where is_last) as min_last,
        avg(max) filter (where is_first) as max_first, avg(max) filter (where is_last) as max_last,
        covar_pop(mean, place) / nullif(stddev_pop(mean) * stddev_pop(place), 0) as trend
    from quarters
    group by all
),
drifts as (
    select
        c.*, t.tensor, t.max - t.min as width,
        greatest(abs(max_last - max_first), abs(min_last - min_first), abs(mean_last - mean_first)) as change
    from compared c
    join tensors t on t.tensor_id = c.tensor_id
)
select
    tensor, round(change / nullif(width, 0), 4) as drift, round(trend, 3) as trend, mean_first, mean_last, min_first, min_last,
    max_first, max_last, samples
from drifts
order by drift desc nulls last, tensor_id
