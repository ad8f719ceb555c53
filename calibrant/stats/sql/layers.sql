-- Layers by the signal-to-quantization-noise ratio of data and weight together, worst first
-- The multiplied weight of a balanced layer has no row in weights: its signal is told by its noise and their ratio.
with sums as (
    select
        q.fit, q.layer_id, sum(q.mse * w.n) as noise, sum(w.sum_sq) as signal,
        sum(case when q.mse > 0 then q.mse * w.n * pow(10, q.sqnr_db / 10) else w.sum_sq end) as multiplied_signal
    from quant_params q
    join weights w on w.layer_id = q.layer_id and w.channel = q.channel
    where q.role = 'weight' and q.channel is not null
    group by all
    union all
    select
        q.fit, q.layer_id, q.mse * w.n, w.sum_sq,
        case when q.mse > 0 then q.mse * w.n * pow(10, q.sqnr_db / 10) else w.sum_sq end
    from quant_params q
    join (select layer_id, sum(n) as n, sum(sum_sq) as sum_sq from weights group by all) w on w.layer_id = q.layer_id
    where q.role = 'weight' and q.channel is null
),
weight_noise as (
    select s.fit, s.layer_id, s.noise, case when b.fit is null then s.signal else s.multiplied_signal end as signal
    from sums s
    left join (select distinct fit, layer_id from balance) b on b.fit = s.fit and b.layer_id = s.layer_id
),
layer_noise as (
    select
        d.fit, d.layer_id, d.algorithm, d.bits, d.scale, d."offset", d.sqnr_db as data_sqnr_db, d.clip_rate,
        case when w.signal > 0 and w.noise > 0 then 10 * log10(w.signal / w.noise) end as weight_sqnr_db
    from quant_params d
    left join weight_noise w on w.fit = d.fit and w.layer_id = d.layer_id
    where d.role = 'data'
)
select
    l.layer, l.op_type,
    round(-10 * log10(
        coalesce(pow(10, -n.data_sqnr_db / 10), 0) + coalesce(pow(10, -n.weight_sqnr_db / 10), 0) + 1e-30
    ), 2) as sqnr_db,
    round(n.data_sqnr_db, 2) as data_db,
    round(n.weight_sqnr_db, 2) as weight_db,
    round(n.clip_rate, 7) as clip_rate, n.scale, n."offset", n.algorithm, n.bits, l.macs, n.fit
from layer_noise n
join layers l on l.layer_id = n.layer_id
order by n.fit, sqnr_db, l.layer_id
