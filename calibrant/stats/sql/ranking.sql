-- Layers ranked, worst first: relative error (noise over signal, %) of data and weight from statistics, and what was measured of each layer
with weight_error as (
    select q.fit, q.layer_id, sum(q.mse * w.n) / nullif(sum(w.sum_sq), 0) as ratio
    from (
        select fit, layer_id, channel, mse
        from quant_params
        where role = 'weight' and channel is not null
    ) q
    join weights w on w.layer_id = q.layer_id and w.channel = q.channel
    group by all
    union all
    select q.fit, q.layer_id, q.mse * w.n / nullif(w.sum_sq, 0)
    from quant_params q
    join (select layer_id, sum(n) as n, sum(sum_sq) as sum_sq from weights group by all) w on w.layer_id = q.layer_id
    where q.role = 'weight' and q.channel is null
),
data_error as (
    select fit, layer_id, pow(10, -sqnr_db / 10) as ratio, clip_rate, algorithm, bits
    from quant_params
    where role = 'data'
),
measured as (
    select
        fit, layer_id,
        max(value) filter (where view = 'isolated' and metric = 'sqnr_db') as isolated_db,
        max(value) filter (where view = 'whole' and metric = 'sqnr_db') as whole_db,
        max(low) filter (where view = 'whole' and metric = 'sqnr_db') as whole_low,
        max(high) filter (where view = 'whole' and metric = 'sqnr_db') as whole_high
    from sensitivity
    group by all
),
errors as (
    select
        coalesce(d.fit, w.fit) as fit, coalesce(d.layer_id, w.layer_id) as layer_id,
        coalesce(d.ratio, 0) + coalesce(w.ratio, 0) as ratio,
        d.ratio as data_ratio, w.ratio as weight_ratio, d.clip_rate, d.algorithm, d.bits
    from data_error d
    full join weight_error w on w.fit = d.fit and w.layer_id = d.layer_id
)
select
    l.layer, l.op_type,
    round(100 * sqrt(e.ratio), 3) as error_percent,
    case when e.ratio > 0 then round(-10 * log10(e.ratio), 2) end as sqnr_db,
    case when e.data_ratio > 0 then round(-10 * log10(e.data_ratio), 2) end as data_db,
    case when e.weight_ratio > 0 then round(-10 * log10(e.weight_ratio), 2) end as weight_db,
    round(e.clip_rate, 7) as clip_rate,
    round(m.isolated_db, 2) as isolated_db, round(m.whole_db, 2) as whole_db,
    round(m.whole_low, 2) as whole_low, round(m.whole_high, 2) as whole_high,
    l.macs, e.algorithm, e.bits, e.fit
from errors e
join layers l on l.layer_id = e.layer_id
left join measured m on m.fit = e.fit and m.layer_id = e.layer_id
order by e.fit, m.whole_db nulls last, m.isolated_db nulls last, e.ratio desc, l.layer_id
