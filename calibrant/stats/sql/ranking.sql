-- Layers ranked, worst first: relative error (noise over signal, %) of data and weight from statistics, and what was measured of each layer
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
weight_error as (
    select
        s.fit, s.layer_id,
        s.noise / nullif(case when b.fit is null then s.signal else s.multiplied_signal end, 0) as ratio
    from sums s
    left join (select distinct fit, layer_id from balance) b on b.fit = s.fit and b.layer_id = s.layer_id
),
data_error as (
    select fit, layer_id, pow(10, -sqnr_db / 10) as ratio, clip_rate, algorithm, bits
    from quant_params
    where role = 'data'
),
measured as (
    select
        fit, layer_id,
        max(value) filter (where view = 'statistics' and metric = 'sqnr_db') as statistics_db,
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
),
-- A fit is ranked by the first view of `sensitivity` that all its layers have, else by the noise of its data and weights.
viewed as (
    select
        e.*, m.statistics_db, m.isolated_db, m.whole_db, m.whole_low, m.whole_high,
        case
            when bool_and(m.whole_db is not null) over (partition by e.fit) then 'whole'
            when bool_and(m.isolated_db is not null) over (partition by e.fit) then 'isolated'
            when bool_and(m.statistics_db is not null) over (partition by e.fit) then 'statistics'
            else 'data and weight'
        end as ranked_by
    from errors e
    left join measured m on m.fit = e.fit and m.layer_id = e.layer_id
)
select
    l.layer, l.op_type,
    round(100 * sqrt(v.ratio), 3) as error_percent,
    case when v.ratio > 0 then round(-10 * log10(v.ratio), 2) end as sqnr_db,
    case when v.data_ratio > 0 then round(-10 * log10(v.data_ratio), 2) end as data_db,
    case when v.weight_ratio > 0 then round(-10 * log10(v.weight_ratio), 2) end as weight_db,
    round(v.clip_rate, 7) as clip_rate,
    round(v.statistics_db, 2) as statistics_db, round(v.isolated_db, 2) as isolated_db, round(v.whole_db, 2) as whole_db,
    round(v.whole_low, 2) as whole_low, round(v.whole_high, 2) as whole_high,
    v.ranked_by,
    round(100 * case v.ranked_by
        when 'whole' then pow(10, -v.whole_db / 20)
        when 'isolated' then pow(10, -v.isolated_db / 20)
        when 'statistics' then pow(10, -v.statistics_db / 20)
        else sqrt(v.ratio)
    end, 4) as ranked_percent,
    l.macs, v.algorithm, v.bits, v.fit
from viewed v
join layers l on l.layer_id = v.layer_id
order by v.fit, ranked_percent desc, l.layer_id
